"""The reference cache against itself as told by its events, under random lives.

A ledger of events must always equal the pool, and a hit must be what a token-by-token reading of
the resume rule gives on that ledger.
"""

import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kvbraid.errors import TooLargeError
from kvbraid.events.model import BlockRemoved, BlockStored, Event
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference.cache import ReferenceCache, Request, wire_hash
from tests.reference.chains import chain, chunked, full, mamba, window

BLOCK_SIZES = st.sampled_from([2, 4, 6])
GROUPS = st.one_of(
    st.builds(full, BLOCK_SIZES, eagle=st.booleans()),
    st.builds(window, st.integers(1, 14), BLOCK_SIZES, eagle=st.booleans()),
    st.builds(chunked, st.integers(1, 14), BLOCK_SIZES),
    BLOCK_SIZES.map(mamba),
)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)  # Two tokens: prefixes are shared.


def needed_tokens(group: GroupSpec, boundary: int) -> range:
    """The tokens whose cache the token after the boundary reads; a state's is its last one."""
    if group.kind is SpecKind.MAMBA:
        return range(boundary - 1, boundary)
    if group.kind is SpecKind.SLIDING_WINDOW:
        return range(max(0, boundary - (group.window or 0) + 1), boundary)
    if group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        return range(boundary - boundary % (group.chunk or 0), boundary)
    return range(boundary)


class CacheMachine(RuleBasedStateMachine):
    """Requests begin, step and finish in any order; the pool is small, so that it evicts."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Counter[tuple[int | None, int | bytes]] = Counter()

    @initialize(
        groups=st.lists(GROUPS, min_size=1, max_size=4),
        num_blocks=st.integers(20, 60),
        retention=st.sampled_from([None, 0, 24]),
        max_step_tokens=st.integers(1, 30),
    )
    def start(
        self, groups: list[GroupSpec], num_blocks: int, retention: int | None, max_step_tokens: int
    ) -> None:
        self.hash_block_size = math.gcd(*(group.block_size for group in groups))
        self.alignment = math.lcm(*(group.block_size for group in groups))
        self.cache = ReferenceCache(
            Topology(groups=tuple(groups)),
            num_blocks,
            chain=chain(self.hash_block_size),
            retention=retention,
            max_step_tokens=max_step_tokens,
        )

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.ledger.update((event.group_idx, h) for h in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.ledger.subtract((event.group_idx, h) for h in event.block_hashes)
            else:
                self.ledger.clear()
        assert all(count >= 0 for count in self.ledger.values())
        self.ledger = +self.ledger

    def expected(self, prompt: Sequence[int]) -> int:
        hashes = [wire_hash(digest) for digest in chain(self.hash_block_size)(prompt, None)]

        def accepts(g: int, group: GroupSpec, boundary: int) -> bool:
            blocks = {token // group.block_size for token in needed_tokens(group, boundary)}
            if group.eagle:
                blocks.add(boundary // group.block_size)
            units = [(j + 1) * group.block_size // self.hash_block_size for j in blocks]
            return all(n <= len(hashes) and (g, hashes[n - 1]) in self.ledger for n in units)

        return max(
            boundary
            for boundary in range(0, len(prompt), self.alignment)
            if boundary == 0
            or all(accepts(g, group, boundary) for g, group in enumerate(self.cache.groups))
        )

    @precondition(lambda self: len(self.cache.running) < 3)
    @rule(prompt=TOKENS, outputs=st.lists(st.integers(0, 1), max_size=8))
    def begin(self, prompt: list[int], outputs: list[int]) -> None:
        expected = self.expected(prompt)
        assert self.cache.match(prompt) == expected
        assert self.cache.begin(prompt, outputs).hit == expected

    @precondition(lambda self: self.cache.running)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def step(self, data: st.DataObject, steps: int) -> None:
        request: Request = data.draw(st.sampled_from(self.cache.running))
        for _ in range(steps):
            if request.is_done:
                return self.cache.finish(request)
            try:
                self.cache.step(request)
            except TooLargeError:
                return self.cache.finish(request)
            self.note(self.cache.take_events())
        return None

    @rule(prompt=TOKENS, outputs=st.lists(st.integers(0, 1), max_size=8))
    def run_whole(self, prompt: list[int], outputs: list[int]) -> None:
        expected = self.expected(prompt)
        try:
            run = self.cache.run(prompt, outputs)
        except TooLargeError:
            return self.note(self.cache.take_events())
        assert run.hit == expected
        return self.note([event for batch in run.batches for event in batch])

    @rule()
    def reset(self) -> None:
        assert self.cache.reset() == (not self.cache.running)
        self.note(self.cache.take_events())

    @invariant()
    def the_cache_is_whole(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()

    @invariant()
    def events_tell_what_is_held(self) -> None:
        if hasattr(self, "cache"):
            held = {(g, wire_hash(d)): len(b) for (g, d), b in self.cache.pool.copies.items()}
            assert dict(self.ledger) == held


TestReferenceCache = CacheMachine.TestCase
TestReferenceCache.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
