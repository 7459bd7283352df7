"""The brute-force model of the cache against the reference cache of the simulated engines.

Two caches written apart, the same lives: equal hits, block tables, queues of free blocks and
events, step by step, one request after the other, under eviction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, Dense, Interval, Need
from kvbraid.errors import TooLargeError
from kvbraid.hashing import EngineHash, ExtraKeys, block_hashes
from kvbraid.spec import EngineDialect, Topology

from tests.reference.cache import ReferenceCache, Request
from tests.reference.cache_model import CacheModel
from tests.reference.chains import chunked, full, mamba, window

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)  # Two tokens: prefixes are shared.


@dataclass(frozen=True)
class Engine:
    """Within what both caches know: no entries inside blocks, and draft heads only where all
    blocks are equal and retention is dense."""

    topology: Topology
    num_blocks: int
    retention: int | None
    max_step_tokens: int


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    unit, eagle = draw(st.sampled_from([2, 3])), draw(st.booleans())
    sizes = st.just(unit) if eagle else st.sampled_from([unit, 2 * unit, 3 * unit])
    one = st.one_of(
        st.just(full(unit, eagle=eagle)),
        st.builds(window, st.integers(2, 14), sizes, eagle=st.just(eagle)),
        st.builds(chunked, st.integers(1, 14), sizes),
        sizes.map(mamba),
    )
    groups = draw(st.lists(one, min_size=1, max_size=4))
    alignment = math.lcm(*(group.block_size for group in groups))
    return Engine(
        Topology(
            groups=tuple(groups),
            alignment=alignment,
            hash_block_size=math.gcd(*(group.block_size for group in groups)),
            dialect=EngineDialect.PURE,
        ),
        draw(st.integers(20, 80)),
        None if eagle else draw(st.sampled_from([None, 0, 2 * alignment])),
        draw(st.integers(1, 30)),
    )


def both(engine: Engine) -> tuple[CacheModel, ReferenceCache]:
    topology, kept = engine.topology, engine.retention
    assert topology.hash_block_size is not None
    hasher = EngineHash(block_size=topology.hash_block_size)
    reference = ReferenceCache(
        topology,
        engine.num_blocks,
        chain=lambda tokens, salt: block_hashes(tokens, hasher, ExtraKeys(cache_salt=salt)),
        retention=kept,
        max_step_tokens=engine.max_step_tokens,
    )
    config = CacheConfig(
        topology=topology,
        num_blocks=engine.num_blocks,
        events=True,
        retention=Dense() if kept is None else Interval(kept),
    )
    return CacheModel(config), reference


class Pair:
    """One request in both caches."""

    def __init__(self, model: CacheModel, reference: ReferenceCache, request: Request) -> None:
        self.model, self.reference, self.request = model, reference, request
        extra = ExtraKeys(cache_salt=request.salt)
        self.handle = model.add(request.tokens[: request.num_prompt_tokens], extra=extra)
        self.num_said = request.num_prompt_tokens
        self.match = model.match(self.handle)
        assert self.match.num_tokens == request.hit
        self.starts = True

    def step(self) -> bool:
        """Let both compute the next tokens; return whether they had the blocks for it."""
        request, start = self.request, self.request.num_computed_tokens
        fits = True
        try:
            self.reference.step(request)
        except TooLargeError:
            fits = False
        end = request.num_computed_tokens if fits else start + self.reference.max_step_tokens
        self.model.extend(self.handle, request.tokens[self.num_said : end])
        self.num_said = max(self.num_said, end)
        need = Need(request=self.handle, num_new_tokens=end - start)
        if self.starts:
            need.num_hit_tokens, need.junction = self.match
            need.num_computed_tokens = 0
        self.model.start_step()
        if not fits:
            event("out of blocks")
            return False
        assert self.model.allocate([need]).num_fit == 1
        assert self.model.blocks(self.handle) == request.tables
        self.starts = False
        return True

    def finish(self) -> bool:
        """End it in both; return whether they can still be compared: the reference holds its hit
        from the beginning, and frees what is skipped before it knows whether the rest fits."""
        request = self.request
        if not request.is_done and not self.starts:
            self.model.free_skipped(self.handle, request.num_computed_tokens)
        self.reference.finish(request)
        self.model.release([self.handle])
        return not self.starts or not request.hit


def compare(model: CacheModel, reference: ReferenceCache) -> None:
    assert model.take_events() == reference.take_events()
    assert model.debug.free_queue() == list(reference.pool.free)
    assert model.debug.cached() == reference.pool.copies
    model.debug.check_integrity()


@settings(max_examples=200)
@given(
    engine=engines(),
    lives=st.lists(st.tuples(TOKENS, TOKENS, st.sampled_from([None, "s"])), max_size=12),
)
def test_requests_in_turn_are_the_same_in_both(
    engine: Engine, lives: Sequence[tuple[list[int], list[int], str | None]]
) -> None:
    model, reference = both(engine)
    for prompt, outputs, salt in lives:
        pair = Pair(model, reference, reference.begin(prompt, outputs[:10], salt=salt))
        while not pair.request.is_done and pair.step():
            compare(model, reference)
        if not pair.finish():
            return
        compare(model, reference)
