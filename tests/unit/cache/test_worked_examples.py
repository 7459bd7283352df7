"""Every worked example of the resume rule end to end: requests run, blocks go, one resumes.

To give a cache certain blocks, a test runs a request and forgets its other blocks one by one;
nothing is put into the cache by hand.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from kvbraid.cache import CacheManager, Need
from kvbraid.hashing import EngineHash, block_hashes
from kvbraid.ids import BlockHash
from kvbraid.spec import GroupSpec, SpecKind

from tests.reference import resume
from tests.unit.cache.caches import (
    blocks_held,
    chunked,
    compute,
    config,
    full,
    leave,
    mamba,
    window,
)

BLOCK = 16
TOKENS = list(range(3 * BLOCK + 5))
"""Three whole blocks and a tail."""


class Example(NamedTuple):
    groups: tuple[GroupSpec, ...]
    held: tuple[tuple[int, ...], ...]
    blocks: int  # After which a request can resume.
    num_tokens: int = len(TOKENS)


W32, W64, W17 = window(32), window(64), window(17)
EXAMPLES = {
    "everything": Example((full(), W32), ((0, 1, 2), (0, 1, 2)), 3),
    "no boundary has its window": Example((full(), W32), ((0, 1, 2), ()), 0),
    "window of boundary 3 incomplete": Example((full(), W32), ((0, 1, 2), (0, 1)), 2),
    "block 0 is out of the window": Example((full(), W32), ((0, 1, 2), (1, 2)), 3),
    "prefix shorter than the window": Example((full(), W32), ((0, 1, 2), (0,)), 1),
    "full attention has no prefix": Example((full(), W32), ((), (0, 1, 2)), 0),
    "full attention ends first": Example((full(), W32), ((0, 1), (0, 1, 2)), 2),
    "window longer than the prefix": Example((full(), W64), ((0, 1, 2), (0, 1, 2)), 3),
    "both hold different windows": Example((full(), W32, W32), ((0, 1, 2), (0, 1), (1, 2)), 0),
    "best of each is not best of all": Example((full(), W32, W17), ((0, 1, 2), (1, 2), (0,)), 0),
    "no full group": Example((W32,), ((1, 2),), 3),
    "a checkpoint at boundary 2 only": Example((full(), mamba()), ((0, 1, 2), (1,)), 2),
    "chunk of boundary 3 starts at block 2": Example((full(), chunked(32)), ((0, 1, 2), (2,)), 3),
    "boundary 2 starts a chunk": Example((full(), chunked(32)), ((0, 1, 2), ()), 2),
    "one token is left to compute": Example((full(), W32), ((0, 1, 2), (0, 1, 2)), 2, 3 * BLOCK),
    "nothing beyond the draft head's hit": Example(
        (full(eagle=True), W32), ((0, 1, 2), (0, 1, 2)), 2
    ),
    "a draft head beside a group without": Example(
        (full(eagle=True), full()), ((0, 1, 2), (0, 1, 2)), 2
    ),
    "a window of one needs nothing": Example((full(), window(1)), ((0, 1, 2), ()), 3),
}


def holder(groups: Sequence[GroupSpec], held: Sequence[Sequence[int]]) -> CacheManager:
    """A cache that served `TOKENS` and then lost all blocks but those of `held`."""
    cache = CacheManager(config(*groups))
    leave(cache, TOKENS, BLOCK)
    for group, kept in enumerate(held):
        for block, digest in enumerate(hashes(TOKENS, BLOCK)):
            if block not in kept:
                cache.pool.forget(cache.debug.cached().get((group, digest), []))
    found = [{end // BLOCK - 1 for end in ends} for ends in blocks_held(cache, TOKENS, BLOCK)]
    assert found == [set(kept) for kept in held]
    return cache


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_a_request_reuses_what_the_rule_says(example: Example) -> None:
    cache = holder(example.groups, example.held)
    request = cache.add(TOKENS[: example.num_tokens])
    match = cache.match(request)
    assert match.num_tokens == example.blocks * BLOCK
    compute(cache, request, [example.num_tokens], hit=match.num_tokens)
    for group, spec in enumerate(example.groups):
        table = cache.blocks(request)[group][: example.blocks]
        read = needed(spec, match.num_tokens)
        digests = hashes(TOKENS, BLOCK)
        for block, got in enumerate(table):
            expected = cache.debug.cached()[group, digests[block]][0] if block in read else 0
            assert got == expected, (group, block)
    cache.release([request])
    cache.debug.check_integrity()


def needed(spec: GroupSpec, hit: int) -> range:
    """The blocks that the token after the hit reads."""
    first = hit - 1 if spec.kind is SpecKind.MAMBA else resume.first_needed(spec, hit)
    return range(first // BLOCK, hit // BLOCK)


def test_two_groups_of_one_spec_are_two_conditions() -> None:
    cache = holder((W32, W32), ((0, 1, 2), (0, 1)))
    assert cache.match(cache.add(TOKENS)).num_tokens == 2 * BLOCK


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


def hashes(tokens: Sequence[int], unit: int) -> list[BlockHash]:
    return block_hashes(tokens, EngineHash(block_size=unit, seed="0"))
