"""What is inferred of groups that no event tells of, against a tree that knows them.

Whatever an engine forgets in silence, the truth lies between the bounds. Where the pools of the
silent groups cannot run short, it forgets nothing, and every end of a store is promised.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.engine import EngineProfile
from kvbraid.events import encode_batch
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.reference.sglang_tree import Page, Tree, tokens

POD = PodId("pod")
LONGEST = 9


class World:
    """An engine with one silent group, and an index that follows it."""

    def __init__(
        self, seed: int, *, page_size: int, window: int | None, never_short: bool
    ) -> None:
        self.random = Random(seed)
        self.routed = self.random.random() < 0.5
        kind = SpecKind.MAMBA if window is None else SpecKind.SLIDING_WINDOW
        silent = GroupSpec(kind=kind, block_size=page_size, window=window)
        full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=page_size)
        self.tree = Tree(
            random=self.random,
            page_size=page_size,
            window_pages=None if window is None else -(-(window - 1) // page_size),
            never_short=never_short,
        )
        self.index = FleetIndex()
        engine = EngineProfile(
            dialect=EngineDialect.SGLANG,
            silent_pools_never_short=never_short,
            window_pool_tokens=self.random.choice((None, 40)),
            state_slots=self.random.choice((None, 6)),
            chunked_prefill_size=self.random.choice((None, 3 * page_size)),
        )
        self.index.register(
            POD, model="m", topology=Topology(groups=(full, silent)), engine=engine
        )

    def prompt(self) -> Page:
        return tuple(self.random.randrange(2) for _ in range(self.random.randint(1, LONGEST)))

    def step(self) -> None:
        """Something happens in the engine, and is published, if anybody learns of it."""
        choice = self.random.random()
        if choice < 0.55:
            prompt = self.prompt()
            if self.routed:
                token_ids = [*tokens(prompt, self.tree.page_size), 7]
                self.index.routed(POD, Request(model="m", token_ids=token_ids), [8])
            self.tree.run(prompt)
        elif choice < 0.75:
            self.tree.evict()
        elif choice < 0.98:
            self.tree.forget_in_silence()
        else:
            self.tree.flush()
        if events := self.tree.take_events():
            self.index.apply(POD, encode_batch(events))
            self.index.check_integrity()

    def ask(self) -> tuple[PodScore, int]:
        """An answer, and the truth in tokens."""
        prompt, size = self.prompt(), self.tree.page_size
        token_ids = [*tokens(prompt, size), 7]
        (row,) = self.index.score(Request(model="m", token_ids=token_ids)).rows
        return row, self.tree.hit(prompt) * size


WINDOWS = st.sampled_from((None, 1, 2, 5, 9))
WORLDS = st.builds(
    World,
    st.integers(0, 1 << 32),
    page_size=st.sampled_from((1, 2, 4)),
    window=WINDOWS,
    never_short=st.booleans(),
)


@given(WORLDS, st.integers(1, 40))
def test_the_truth_lies_between_the_bounds_whatever_is_forgotten_in_silence(
    world: World, steps: int
) -> None:
    for _ in range(steps):
        world.step()
        row, truth = world.ask()
        assert row.lower <= truth <= row.upper
        assert row.lower <= row.expected <= row.upper


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("never_short", [False, True])
def test_more_is_promised_than_nothing(window: int | None, *, never_short: bool) -> None:
    world = World(1, page_size=2, window=window, never_short=never_short)
    promised = 0
    for _ in range(300):
        world.step()
        row, _ = world.ask()
        promised += row.lower > 0
    assert (promised > 20) == (window is None or never_short), promised
