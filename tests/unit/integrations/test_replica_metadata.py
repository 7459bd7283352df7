"""What replicas say of themselves: read, or refused by name; never believed in part."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.metadata import (
    METADATA,
    RAY_LLM,
    ReplicaFacts,
    ReplicaLoad,
    read_load,
    read_pod,
    without_events,
)
from kvbraid.integrations.replicas.options import read_options

from tests.unit.integrations.deployments import GROUPS, facts, options

OPTIONS = options()


def test_a_replica_says_what_a_pod_says_over_http() -> None:
    said = {
        "endpoint": "tcp://10.0.0.1:5557",
        "replay_endpoint": "tcp://10.0.0.1:5558",
        "topology": {**GROUPS, "hash_seed": "0"},
        "dp_size": 2,
        "loras": {"a": "/loras/a"},
    }
    read = read_pod(facts("r", said=said), OPTIONS)
    assert (read.knowledge, read.problem) == ("events", "")
    config = read.config
    assert (config.model, config.endpoint, config.dp_size) == ("m", "tcp://10.0.0.1:5557", 2)
    assert config.topology is not None
    assert len(config.topology.groups) == 1
    assert config.engine.hash_seed == "0"


def test_what_a_replica_leaves_out_comes_from_the_arguments() -> None:
    given_pod = options(pod={"topology": GROUPS, "replay_endpoint": "tcp://10.0.0.1:9"})
    read = read_pod(facts("r", said={"endpoint": "tcp://10.0.0.1:5557"}), given_pod)
    assert read.config.replay_endpoint == "tcp://10.0.0.1:9"
    assert read.config.topology == read_pod(facts("r"), OPTIONS).config.topology
    assert without_events(given_pod).replay_endpoint is None


def test_ray_serve_llm_says_it_in_its_routing_statistics() -> None:
    stats = {
        RAY_LLM: {
            "endpoint": "tcp://10.0.0.1:5557",
            "replay_endpoint": "tcp://10.0.0.1:6557",
            "block_size": 16,
            "max_num_batched_tokens": 8192,
            "dp_rank": 3,
        }
    }
    read = read_pod(facts("r", said=None, stats=stats), OPTIONS)
    assert read.knowledge == "events"
    assert (read.config.endpoint, read.config.replay_endpoint) == (
        "tcp://10.0.0.1:5557",
        "tcp://10.0.0.1:6557",
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (7, "metadata 'kvbraid' is 7; expected a mapping"),
        ({}, "endpoint is None; expected tcp://HOST:PORT"),
        ({"endpoint": 5}, "endpoint: Expected `str | null`, got `int`"),
        ({"endpoint": "ask", "url": "http://h:1"}, "endpoint is 'ask'; expected tcp://HOST:PORT"),
        ({"endpoint": "tcp://*:5557"}, "endpoint is 'tcp://*:5557'; expected tcp://HOST:PORT"),
        ({"endpoint": "tcp://h:1", "bind": True}, "expected tcp://HOST:PORT"),
        ({"endpoint": "tcp://h:0"}, "endpoint = 'tcp://h:0'"),
        ({"endpoint": "ipc:///x"}, "endpoint = 'ipc:///x'"),
        ({"endpoint": "x"}, "endpoint 'x' is not a ZeroMQ endpoint"),
        ({"endpoint": "tcp://h:1", "model": "other"}, "model is 'other', and the router's is 'm'"),
        ({"endpoint": "tcp://h:1", "topolgy": {}}, "did you mean topology?"),
        ({"endpoint": "tcp://h:1", "topology": {"groups": [{"kind": "x"}]}}, "kind"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_leaves_a_pod_without_events(
    said: object, told: str
) -> None:
    read = read_pod(facts("r", said=said), OPTIONS)
    assert read.knowledge == "malformed"
    assert told in read.problem
    assert read.config == without_events(OPTIONS)
    assert read.config.followed is None


def test_a_replica_that_says_nothing_is_a_pod_without_events() -> None:
    read = read_pod(facts("r", said=None), OPTIONS)
    assert (read.knowledge, read.config) == ("missing", without_events(OPTIONS))
    assert read.config.topology is not None
    assert len(read.config.topology.groups) == 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)
FIELDS = st.sampled_from(["endpoint", "replay_endpoint", "model", "topology", "dp_size", "loras"])


@given(said=ANYTHING | st.dictionaries(FIELDS, ANYTHING), ray=ANYTHING, load=ANYTHING)
@example(said={"endpoint": "tcp://h:1", "topology": {"groups": []}}, ray=None, load=None)
@example(said=None, ray={"endpoint": "tcp://h:99999999999999999999"}, load={"running": True})
def test_whatever_a_replica_says_it_is_a_pod(said: object, ray: object, load: object) -> None:
    told = ReplicaFacts(PodId("r"), {METADATA: said}, {RAY_LLM: ray, METADATA: load})
    read = read_pod(told, OPTIONS)
    assert bool(read.problem) == (read.knowledge != "events")
    try:
        found = read_load(told)
    except InvalidValueError:
        return
    assert (found is None) == (load is None)


def test_a_load_is_read_or_refused() -> None:
    told = facts("r", stats={METADATA: {"running": 3, "waiting": 1, "usage": 0.5}})
    assert read_load(told) == ReplicaLoad(running=3, waiting=1, usage=0.5)
    for wrong in ({"running": -1}, {"running": 1, "usage": float("nan")}, {"waiting": 1}, 3):
        with pytest.raises(InvalidValueError):
            read_load(facts("r", stats={METADATA: wrong}))


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"modle": "m"}, "request_router_kwargs: unknown key modle; did you mean model?"),
        ({"router": {"hold_s": 0}}, "request_router_kwargs: router.hold_s"),
        ({"router": {"policy": "best"}}, "router.policy is 'best'"),
        ({"router": {"seconds": {"m": {"fit": True}}}}, "needs first tokens"),
        ({"index": {"snapshots": "saved"}}, "index.snapshots is 'saved'"),
        ({"prediction": "not a name"}, "prediction"),
    ],
)
def test_arguments_are_refused_by_name(kwargs: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(told)):
        read_options(kwargs, deployment="m")


def test_a_model_is_called_like_its_deployment_unless_it_has_a_name() -> None:
    assert read_options({}, deployment="engines").model == "engines"
    assert read_options({"model": "m"}, deployment="engines").model == "m"
