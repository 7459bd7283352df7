"""A pod of SGLang whose model is known: the model says which groups its events leave out."""

from dataclasses import replace
from typing import Any, Final

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodState
from kvbraid.models import silent_groups
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import replay
from kvbraid.spec import EngineDialect, GroupSpec, SilentGroup, SpecKind, Topology
from kvbraid.spec_mapping import pod_from_mapping

from tests.captures import SGLANG_FIXTURES
from tests.contract.prompts import POD, TEXT, an_index, answer, exactly
from tests.contract.wires import CLEARED, page, publish, signed
from tests.published_models import published

FULL: Final = SpecKind.FULL_ATTENTION
WINDOW: Final = SilentGroup(kind=SpecKind.SLIDING_WINDOW, window=128)
STATES: Final = SilentGroup(kind=SpecKind.MAMBA, grid=64)
MODELS: Final = {
    "dense_p16_real": "qwen3-32b",
    "dense_p16_spaces": "gemma-3-27b",
    "swa_p16_ratio1": "gpt-oss-20b",
    "mamba_buf_p64": "qwen3-next-80b-a3b",
}
"""Captures, and a published config of a model of which SGLang keeps the same kinds of groups."""


def a_pod(*silent: SilentGroup, topology: Topology | None = None) -> FleetIndex:
    """A pod whose groups are learned."""
    engine = EngineProfile(dialect=EngineDialect.SGLANG, silent_groups=silent)
    return an_index(topology, engine=engine)


def groups(index: FleetIndex) -> list[tuple[SpecKind, int, int | None]]:
    (pod,) = index.pods()
    return [(group.kind, group.block_size, group.window) for group in pod.groups]


def of_model(name: str, mapping: dict[str, Any] | None) -> Capture:
    """A capture of a pod that is registered with its model's config.json."""
    capture = read_capture(SGLANG_FIXTURES / name)
    memory = {"silent_pools_never_short": capture.engine.silent_pools_never_short}
    topology, engine = pod_from_mapping(
        {"dialect": "sglang", **memory, **(mapping or {})}, published(MODELS[name])
    )
    assert topology is not None
    return replace(capture, topology=topology, engine=engine)


def test_a_dense_pod_whose_groups_are_not_listed_is_exact() -> None:
    index = a_pod()
    publish(index, [page(TEXT, 0, 64, "GPU")])
    assert answer(index) == exactly(1024)
    publish(index, [CLEARED])
    assert answer(index) == exactly(0)
    assert groups(index) == [(FULL, 16, None)]


def test_of_a_pod_whose_model_is_not_known_nothing_is_promised() -> None:
    index = an_index(engine=EngineProfile(dialect=EngineDialect.SGLANG))
    publish(index, [page(TEXT, 0, 64, "GPU")])
    assert answer(index) == (0, 1024)


@pytest.mark.parametrize("silent", [WINDOW, replace(STATES, grid=1)])
def test_a_hybrid_whose_groups_are_not_listed_is_like_one_whose_groups_are(
    silent: SilentGroup,
) -> None:
    full = GroupSpec(kind=FULL, block_size=16)
    listed = an_index(
        Topology(groups=(full, silent.of_page(16))),
        engine=EngineProfile(dialect=EngineDialect.SGLANG),
    )
    learned = a_pod(silent)
    for index in (listed, learned):
        publish(index, [page(TEXT, 0, 32, "GPU"), page(TEXT, 32, 64, "GPU")])
        publish(index, [["BlockRemoved", [signed(TEXT.hash(1024))], "GPU"]])
    assert groups(learned) == groups(listed)
    assert answer(learned) == answer(listed)
    assert answer(learned)[0] < 1008 == answer(learned)[1]


def test_states_are_resumed_on_their_grid_only() -> None:
    index = a_pod(STATES)
    publish(index, [page(TEXT, 0, 63, "GPU")])
    assert answer(index)[1] == 63 * 16 // 64 * 64


def test_an_alignment_that_was_given_holds_for_learned_groups_too() -> None:
    index = a_pod(topology=Topology(groups=(), alignment=256))
    publish(index, [page(TEXT, 0, 63, "GPU")])
    assert answer(index) == exactly(768)


def test_a_page_of_another_size_than_the_first_is_a_contradiction() -> None:
    index = a_pod()
    publish(index, [page(TEXT, 0, 32, "GPU")])
    other = page(TEXT, 32, 64, "GPU")
    other[4] = 32
    publish(index, [other])
    (pod,) = index.pods()
    assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_block_size")


def test_with_pages_of_one_token_states_are_resumed_anywhere() -> None:
    index = a_pod(STATES)
    publish(index, [["BlockStored", list(range(1, 101)), None, list(TEXT.tokens[:100]), 1, None]])
    assert answer(index)[1] == 100


def test_a_model_says_nothing_about_an_engine_that_may_tell_of_other_groups() -> None:
    told, untold = an_index(engine=EngineProfile(silent_groups=())), an_index()
    for index in (told, untold):
        publish(index, [page(TEXT, 0, 64, "GPU")])
    assert answer(told) == answer(untold) == (0, 1024)


def test_registering_the_same_model_again_forgets_nothing() -> None:
    index = a_pod()
    publish(index, [page(TEXT, 0, 64, "GPU")])
    engine = EngineProfile(dialect=EngineDialect.SGLANG, silent_groups=())
    index.register(POD, model="m", engine=engine)
    assert answer(index) == exactly(1024)
    index.register(POD, model="m", engine=replace(engine, silent_groups=(WINDOW,)))
    assert answer(index) == exactly(0)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("dense")])
@pytest.mark.parametrize("listed", [False, True])
def test_a_recorded_dense_pod_is_exact_with_its_model_alone(name: str, *, listed: bool) -> None:
    full = {"groups": [{"kind": "full_attention", "block_size": 16}]}
    report = replay(of_model(name, full if listed else None))
    assert report.exact == report.requests > 0


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("dense")])
def test_a_recorded_hybrid_that_is_listed_as_full_only_is_never_wrong(name: str) -> None:
    size = read_capture(SGLANG_FIXTURES / name).topology.groups[0].block_size
    full = {"groups": [{"kind": "full_attention", "block_size": size}]}
    report = replay(of_model(name, full))
    assert (report.over, report.under) == (0, 0)
    misread = read_capture(SGLANG_FIXTURES / name)
    kept = Topology(groups=misread.topology.groups[:1])
    assert replay(replace(misread, topology=kept)).over > 0, "or the capture shows nothing"


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_pod_is_answered_for_alike_with_groups_listed_or_learned(name: str) -> None:
    listed = replay(read_capture(SGLANG_FIXTURES / name))
    assert replay(of_model(name, None)) == listed


def test_a_windowless_engine_of_a_hybrid_model_is_dense() -> None:
    flag = {"dialect": "sglang", "disable_hybrid_swa_memory": True}
    topology, engine = pod_from_mapping(flag, published("gpt-oss-20b"))
    assert (topology, engine.silent_groups) == (Topology(groups=()), ())
    _, hybrid = pod_from_mapping({"dialect": "sglang"}, published("gpt-oss-20b"))
    assert hybrid.silent_groups == silent_groups(published("gpt-oss-20b")) != ()


def test_groups_that_are_listed_need_no_page_to_be_learned() -> None:
    full = GroupSpec(kind=FULL, block_size=16)
    mapping = {"dialect": "sglang", "groups": [{"kind": "full_attention", "block_size": 16}]}
    topology, engine = pod_from_mapping(mapping, published("gpt-oss-20b"))
    assert engine.silent_groups is None
    assert topology == Topology(groups=(full, WINDOW.of_page(16)))
