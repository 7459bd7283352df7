"""Hits that one can draw, end to end: copies, ends inside blocks, replayed windows, late hashes.

The worked examples of the rule itself are in `test_resume_examples`; caches that hold any of their
blocks are in `test_cache_hits`.
"""

from kvbraid.cache import CacheManager, Need

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

BLOCK = 16
TOKENS = list(range(3 * BLOCK + 5))
"""Three whole blocks and a tail."""


W32 = window(32)


def test_a_second_copy_outlives_the_first() -> None:
    cache = CacheManager(config(full(), W32))
    both = [cache.add(TOKENS), cache.add(TOKENS)]
    needs = [Need(request=request, num_new_tokens=len(TOKENS)) for request in both]
    assert cache.allocate(needs).num_fit == 2
    cache.release(both)
    copies = cache.debug.cached()
    assert {len(blocks) for blocks in copies.values()} == {2}
    cache.pool.forget([blocks[0] for blocks in copies.values()])
    assert cache.match(cache.add(TOKENS)).num_tokens == 3 * BLOCK
    cache.pool.forget([blocks[1] for blocks in copies.values()])
    assert cache.match(cache.add(TOKENS)).num_tokens == 0


def test_a_hit_ends_inside_a_block_where_a_state_was_taken() -> None:
    """The prompt's last hash boundary is 40: inside block 2 of the full group and of the state
    group. Both are shared by copy, and the sources are held until the copy has run."""
    unit, tokens = 8, list(range(45))
    partial = {"hash_block_size": unit, "partial_hits": True}
    cache = CacheManager(config(full(), mamba(), topology=partial))
    first = cache.add(tokens)
    compute(cache, first, [32, 40, 45])
    copies = cache.take_work().copies
    assert len(copies) == 1  # The state goes on; its checkpoint is what is copied.
    cache.release([first])
    second = cache.add([*tokens[:40], 99, 98])
    match = cache.match(second)
    assert match.num_tokens == 40
    compute(cache, second, [42], hit=40)
    assert len(cache.take_work().copies) == 2


def test_replayed_windows_shorten_a_hit_and_need_nothing() -> None:
    cache = CacheManager(config(full(), W32, topology={"replay_tokens": 20}))
    leave(cache, TOKENS, BLOCK)
    assert {group for group, _ in cache.debug.cached()} == {0}
    assert cache.match(cache.add(TOKENS)).num_tokens == 3 * BLOCK - 20
    assert cache.match(cache.add(TOKENS[:20])).num_tokens == 0


def test_a_hash_that_looks_ahead_is_known_when_its_tokens_are() -> None:
    cache = CacheManager(config(full(), W32, topology={"hash_lookahead": 3}))
    request = cache.add(TOKENS[: 2 * BLOCK])
    compute(cache, request, [2 * BLOCK])
    assert len(cache.debug.cached()) == 2  # Block 0 of both groups: block 1 lacks three tokens.
    cache.extend(request, TOKENS[2 * BLOCK : 2 * BLOCK + 3])
    cache.allocate([Need(request=request, num_new_tokens=3)])
    assert len(cache.debug.cached()) == 4
    other = cache.add(TOKENS[: 2 * BLOCK + 4])
    assert cache.match(other).num_tokens == 2 * BLOCK
    differs = cache.add([*TOKENS[: 2 * BLOCK], 7, 7, 7, 7])
    assert cache.match(differs).num_tokens == BLOCK
