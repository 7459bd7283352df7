"""What was promised of a prompt, and what a pod that keeps as vLLM does has of it then."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from kvbraid.cache import Dense, Interval, Retention
from kvbraid.engine import EngineProfile
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId, PodState
from kvbraid.sim.routing.pod import MODEL, SimulatedFleet, SimulatedPod
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

POD = PodId("a")
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=40)
CHUNKS = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=48)
STATE = GroupSpec(kind=SpecKind.MAMBA, block_size=32)
DRAFTED = replace(FULL, eagle=True)

GROUPS = {
    "full": (FULL,),
    "window": (FULL, WINDOW),
    "small-windows": (FULL, replace(WINDOW, block_size=8)),
    "chunks": (FULL, CHUNKS),
    "state": (FULL, STATE),
    "window-state": (FULL, WINDOW, STATE),
    "draft-window": (FULL, replace(WINDOW, eagle=True)),
    "draft-full-window": (DRAFTED, WINDOW),
    "draft-state": (replace(DRAFTED, block_size=32), STATE),
}
LENGTHS = (95, 96, 97, 127, 128, 129, 160)
"""Of prompts: around multiples of the blocks, of one, and of two."""


class Pod:
    """One pod of an index; it computes a prompt when it is told to."""

    def __init__(self, groups: tuple[GroupSpec, ...], retention: Retention) -> None:
        model = SimulatedModel(name="any", topology=Topology(groups=groups), block_bytes=1)
        fleet = SimulatedFleet(model=model, num_blocks=400, retention=retention)
        self._pod = SimulatedPod(POD, fleet)
        self.index = FleetIndex()
        self.index.register(POD, model=MODEL, topology=model.topology, engine=fleet.engine())
        self.index.set_state(POD, PodState.EXACT)

    def promise(self, prompt: Sequence[int], *, sparse_windows: bool | None) -> None:
        scores = self.index.score(Request(model=MODEL, token_ids=prompt))
        junction = scores.columns().present_soon[0]
        scores.promise(POD, junction=junction, sparse_windows=sparse_windows)

    def compute(self, prompt: Sequence[int]) -> None:
        for message in self._pod.prefill(array("I", prompt)).messages:
            self.index.apply(POD, message)

    def soon(self, prompt: Sequence[int]) -> int:
        return self.index.score(Request(model=MODEL, token_ids=prompt)).columns().soon[0]

    def lower(self, prompt: Sequence[int]) -> int:
        return self.index.score(Request(model=MODEL, token_ids=prompt)).rows[0].lower


def forked(prompt: Sequence[int], at: int, tokens: int) -> list[int]:
    return [*prompt[:at], *range(tokens, tokens + 100)]


@pytest.mark.parametrize("fork", [0, 48, 64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_what_a_pod_will_soon_hold_is_what_it_then_holds(
    groups: tuple[GroupSpec, ...], length: int, fork: int
) -> None:
    """Where the prompt ends, and where it leaves one that was there before."""
    pod, prompt = Pod(groups, Interval(0)), list(range(length))
    pod.compute(forked(prompt, fork, 1_000))
    pod.promise(prompt, sparse_windows=None)
    asked = [forked(prompt, length, 2_000), forked(prompt, fork, 3_000)]
    between = forked(prompt, 80, 4_000)
    soon, most = [pod.soon(each) for each in asked], pod.soon(between)
    pod.compute(prompt)
    assert soon == [pod.lower(each) for each in asked]
    assert most <= pod.lower(between)
    assert pod.index.num_promised() == 0


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["window", "state", "window-state"])
def test_an_engine_that_is_said_to_keep_all_windows_keeps_them(name: str, length: int) -> None:
    pod, prompt = Pod(GROUPS[name], Dense()), list(range(length))
    pod.promise(prompt, sparse_windows=False)
    asked = [forked(prompt, length, 2_000), forked(prompt, 48, 3_000)]
    soon = [pod.soon(each) for each in asked]
    pod.compute(prompt)
    assert soon == [pod.lower(each) for each in asked]
    assert pod.index.num_promised() == 0


@pytest.mark.parametrize(
    ("dialect", "soon"),
    [(EngineDialect.VLLM, 0), (EngineDialect.PURE, 0), (EngineDialect.SGLANG, 48)],
)
def test_windows_are_kept_as_the_pod_s_engine_does(dialect: EngineDialect, soon: int) -> None:
    index, prompt = FleetIndex(), list(range(128))
    topology = Topology(groups=(FULL, WINDOW))
    index.register(POD, model=MODEL, topology=topology, engine=EngineProfile(dialect=dialect))
    index.promise(POD, Request(model=MODEL, token_ids=prompt))
    request = Request(model=MODEL, token_ids=forked(prompt, 48, 1_000))
    assert index.score(request).columns().expected_soon[0] == soon
