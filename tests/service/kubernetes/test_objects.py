"""Objects of an API server, from any bytes."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.service.kubernetes.endpoint_slices import read_slice
from kvbraid.service.kubernetes.inference_pool import InferencePool, read_pool
from kvbraid.service.kubernetes.labelled_pods import read_pod
from kvbraid.service.kubernetes.objects import (
    BadObjectError,
    EndpointSet,
    FoundEndpoint,
    NoAnswerError,
    WantedPorts,
)
from kvbraid.service.pod_checks import PodPlace

from tests.service.kubernetes.kube_api import a_pod, a_pool, a_slice, encoded, that_goes

KEYS: Final = (
    "metadata", "name", "addressType", "endpoints", "addresses", "targetRef", "kind", "ports",
    "spec", "status", "podIP", "phase", "conditions", "type", "containers", "containerPort",
    "selector", "matchLabels", "targetPorts", "number", "deletionTimestamp",
)  # fmt: skip
ANYTHING: Final = st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=16,
).map(lambda value: json.dumps(value).encode())
PORTS: Final = WantedPorts(frozenset({"http"}), (8000, 8001))
READERS: Final[tuple[Callable[[bytes, WantedPorts], EndpointSet], ...]] = (read_slice, read_pod)


@given(ANYTHING)
def test_any_bytes_are_an_object_or_one_error(raw: bytes) -> None:
    for read in READERS:
        try:
            assert isinstance(read(raw, PORTS).name, str)
        except BadObjectError as error:
            assert "\n" not in str(error)  # noqa: PT017 - Either is right.


@given(ANYTHING)
def test_any_bytes_are_a_pool_or_one_error(raw: bytes) -> None:
    try:
        assert read_pool(raw).target_ports
    except NoAnswerError as error:
        assert error.why == "unreadable"  # noqa: PT017 - Either is right.


def test_what_is_no_slice_is_one_error() -> None:
    for raw in (b"", b"7", b"{}", b"\xff", encoded(a_slice("a", {"addresses": [1]}))):
        with pytest.raises(BadObjectError):
            read_slice(raw, PORTS)
    assert read_slice(encoded(a_slice("a")), PORTS).endpoints == ()


def test_a_pod_is_one_endpoint_with_the_ports_of_its_containers() -> None:
    found = read_pod(encoded(a_pod(1)), WantedPorts(frozenset({"http", "none"})))
    place = PodPlace("10.0.0.1", (("http", 8000),))
    assert found == EndpointSet("engine-1", (FoundEndpoint("engine-1", 4, place, True),))


def test_a_pod_is_one_endpoint_for_each_target_port_of_several() -> None:
    found = read_pod(encoded(a_pod(1)), WantedPorts(targets=(9000, 9001)))
    assert [each.name for each in found.endpoints] == ["engine-1:9000", "engine-1:9001"]
    places = [PodPlace("10.0.0.1", (), 9000, 0), PodPlace("10.0.0.1", (), 9001, 1)]
    assert [each.place for each in found.endpoints] == places
    (one,) = read_pod(encoded(a_pod(1)), WantedPorts(targets=(9000,))).endpoints
    assert (one.name, one.place) == ("engine-1", places[0])


@pytest.mark.parametrize(
    ("pod", "ready"),
    [
        (a_pod(1), [True]),
        (a_pod(1, ready=False), [False]),
        (a_pod(1, conditions=None), [False]),
        (that_goes(a_pod(1)), [False]),
        (a_pod(1, podIP=""), []),
        (a_pod(1, phase="Succeeded"), []),
        (a_pod(1, phase="Failed"), []),
    ],
)
def test_a_pod_is_ready_as_it_would_be_in_a_slice(pod: dict[str, Any], ready: list[bool]) -> None:
    found = read_pod(encoded(pod), WantedPorts())
    assert [each.is_ready for each in found.endpoints] == ready


@pytest.mark.parametrize("pod", [a_pod(1, podIP="example.org"), a_pod(1) | {"metadata": {}}, {}])
def test_what_is_no_pod_is_one_error(pod: object) -> None:
    with pytest.raises(BadObjectError):
        read_pod(encoded(pod), WantedPorts())


def test_a_pool_is_a_selector_and_ports() -> None:
    labels = {"app": "vllm", "example.org/tier": ""}
    pool = read_pool(encoded(a_pool(8000, 8001, **labels)))
    assert pool == InferencePool("app=vllm,example.org/tier=", (8000, 8001))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"selector": {"matchLabels": {}}},  # It would select every pod.
        {"selector": {}},
        {"selector": {"matchLabels": {"a,b": "c"}}},
        {"selector": {"matchLabels": {"a": "b,c!=d"}}},
        {"selector": {"matchLabels": {"a": "b\n"}}},
        {"targetPorts": []},
        {"targetPorts": [{"number": 0}]},
        {"targetPorts": [{"number": n} for n in range(1, 10)]},
    ],
)
def test_what_is_no_pool_is_unreadable(spec: dict[str, Any]) -> None:
    whole = a_pool()["spec"] | spec if spec else {}
    with pytest.raises(NoAnswerError, match=r".") as refused:
        read_pool(encoded({"spec": whole}))
    assert refused.value.why == "unreadable"
