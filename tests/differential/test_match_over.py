"""The hit over a cache and its tiers against brute force.

Blocks are missing in the cache, group by group at another rate, and tiers have some of them: of
full attention, windows, chunks, states after any number of tokens, and the unit of a draft head.
So a tier may fill what stops the hit of the cache, and the cache what comes after that.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, CacheManager, Need, TierMatch
from kvbraid.ids import BlockId
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.differential.holes import MOST_TOKENS, RATES, Both, step_ends
from tests.reference import resume
from tests.reference.cache_configs import cache_configs
from tests.reference.cache_pool import Key
from tests.reference.tier_match import match_over

SLOTS = 1_000  # More than a prompt has hashes, times its groups.


class Tier:
    """The index of a tier, and what it finds."""

    def __init__(self, config: CacheConfig) -> None:
        self.cache = CacheManager(
            replace(config, num_blocks=SLOTS, medium="CPU", dialect=EngineDialect.PURE)
        )
        self.slots: dict[Key, list[BlockId]] = {}

    def store(self, key: Key) -> None:
        """Store a block, or a second copy of it."""
        slots = self.cache.pool.take(1)
        self.cache.pool.register(slots[0], *key, num_tokens=1)
        self.cache.pool.free(slots)
        self.slots.setdefault(key, []).extend(slots)

    def fill(self, random: Random, hashes: Sequence[bytes]) -> None:
        for group in range(self.cache.num_groups):
            rate = random.choice((0.0, 0.0, 0.4, 0.8, 0.95, 1.0))
            for digest in hashes:
                for _ in range(random.random() < rate and random.choice((1, 1, 1, 2))):
                    self.store((group, digest))


def look(both: Both, tiers: Sequence[Tier], tokens: Sequence[int], *, whole_blocks: bool) -> None:
    """Look a request up, and have it load what was found."""
    ours, theirs = both.native.add(tokens), both.model.add(tokens)
    pools, slots = [tier.cache.pool for tier in tiers], [tier.slots for tier in tiers]
    found = both.native.tiers.match_over(ours, pools, whole_blocks=whole_blocks)
    expected = match_over(both.model, theirs, slots, whole_blocks=whole_blocks)
    assert (found.match, found.num_pool_tokens, found.num_tokens) == expected[:3]
    assert found.fills() == expected.fills
    assert both.match(ours, theirs).num_tokens == found.num_pool_tokens <= found.num_tokens
    if found.num_external_tokens:
        load(both, ours, theirs, found)
    both.native.release([ours])
    both.model.release([theirs])
    both.same_memory()
    both.native.debug.check_integrity()


def load(both: Both, ours: int, theirs: int, found: TierMatch) -> None:
    """Everything that is read after the load was there before it, or is filled by it."""
    need = Need(
        request=ours,
        num_new_tokens=0,
        match=found.match,
        num_external_tokens=found.num_external_tokens,
        delay_commit=True,
    )
    hits = both.model.hits_of(both.model.memory.requests[theirs], found.match.num_tokens)
    both.step(need, theirs)
    tables = both.native.blocks(ours)
    assert tables == both.model.blocks(theirs)
    fills = {(fill.group, fill.position) for fill in found.fills()}
    assert all(tables[group][position] for group, position in fills)
    for group in both.model.shared_groups():
        g = group.index
        for place in resume.needed_blocks(replace(group.spec, eagle=False), found.num_tokens):
            held = place < len(hits[g]) and tables[g][place] == hits[g][place] != 0
            assert held != ((g, place) in fills)


def compare(config: CacheConfig, random: Random) -> None:
    both, unit = Both(config), config.topology.hash_block_size or 1
    prompt = [random.randrange(2) for _ in range(random.randint(8, MOST_TOKENS))]
    both.run(prompt, step_ends(random, unit))
    request = both.native.add(prompt)
    hashes = both.native.tiers.block_hashes(request)
    both.native.release([request])
    both.model.release([both.model.add(prompt)])
    tiers = [Tier(both.native.config) for _ in range(random.randint(0, 3))]
    for _ in range(3):
        both.punch(random, (*RATES, 1.0))
        for tier in tiers:
            tier.fill(random, hashes)
        for _ in range(6):
            start = prompt[: random.randint(1, len(prompt))]
            for tokens in (start, [*start, 7, 7, 7][:MOST_TOKENS]):
                look(both, tiers, tokens, whole_blocks=random.random() < 0.5)
        for tier in tiers:
            tier.cache.debug.check_integrity()
            assert tier.cache.reset()
            tier.slots.clear()


@given(config=cache_configs(), seed=st.integers(0, 2**32))
def test_a_hit_over_tiers_is_that_of_one_cache_with_everything(
    config: CacheConfig, seed: int
) -> None:
    compare(config, Random(seed))


@given(config=cache_configs(ends_inside=True), seed=st.integers(0, 2**32))
def test_a_hit_over_tiers_may_end_inside_blocks(config: CacheConfig, seed: int) -> None:
    compare(config, Random(seed))


@given(config=cache_configs(EngineDialect.VLLM, extras=False), seed=st.integers(0, 2**32))
def test_a_hit_over_tiers_is_never_below_that_of_the_engine(
    config: CacheConfig, seed: int
) -> None:
    compare(config, Random(seed))


@st.composite
def odd_chunks(draw: st.DrawFn) -> CacheConfig:
    """Chunks that start inside blocks: an engine may say that it holds one which it has not looked
    at, because it looked for the chunk of a longer prefix."""
    size = draw(st.integers(2, 4))
    full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=size)
    chunk = draw(st.integers(0, 4)) * size + draw(st.integers(1, size - 1))
    window = draw(st.integers(1, 3 * size))
    chunks = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=size, chunk=chunk)
    windows = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=size, window=window)
    others = draw(st.sampled_from(((), (full,), (windows,), (full, windows))))
    return CacheConfig(
        topology=Topology(groups=(chunks, *others)),
        dialect=EngineDialect.VLLM,
        hash_seed="0",
        num_blocks=8,
        events=True,
    )


@given(config=odd_chunks(), seed=st.integers(0, 2**32))
def test_a_load_begins_at_the_hit_also_where_the_engine_has_not_looked_at_its_chunk(
    config: CacheConfig, seed: int
) -> None:
    compare(config, Random(seed))
