"""What a cache tells those who store and load its blocks, and the index of a tier."""

from dataclasses import replace
from threading import Thread

import pytest
from kvbraid.cache import CacheManager, Fill, Findable, Need
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.events import BlockRemoved
from kvbraid.hashing import EngineHash, block_hashes

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

TOKENS = list(range(40))
DIGESTS = [bytes([number]) * 32 for number in range(9)]


def test_a_cache_hands_out_the_hashes_that_it_computed() -> None:
    cache = CacheManager(config(full(4), window(8, 8)))
    request = cache.add(TOKENS[:11])
    expected = [*block_hashes(TOKENS[:14], EngineHash(block_size=4, seed="0"))]
    assert cache.tiers.block_hashes(request) == expected[:2]
    cache.extend(request, TOKENS[11:14])
    assert cache.tiers.block_hashes(request) == expected
    assert cache.tiers.block_hashes(request, 1) == expected[1:]
    assert cache.tiers.block_hashes(request, 3) == cache.tiers.block_hashes(request, 9) == []


def test_a_cache_hands_out_the_hashes_that_it_was_given() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS[:9], block_hashes=DIGESTS[:2])
    cache.extend(request, TOKENS[9:14], block_hashes=[DIGESTS[2][:16]])
    assert cache.tiers.block_hashes(request) == [*DIGESTS[:2], DIGESTS[2][:16]]


def test_a_cache_hands_out_no_hashes_of_a_request_that_has_gone() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    cache.release([request])
    with pytest.raises(UnknownError, match=f"{request}"):
        cache.tiers.block_hashes(request)


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_a_cache_without_requests_is_the_index_of_a_tier(medium: str) -> None:
    index = CacheManager(config(full(4), full(4), num_blocks=4, medium=medium))
    for number, digest in enumerate(DIGESTS[:3]):
        slots = index.pool.take(1)
        index.pool.register(slots[0], number % 2, digest, 4)
        index.pool.free(slots)
    assert len(index.take_events()) == 0
    used = index.pool.holders(0, DIGESTS[0])
    index.pool.hold(used)  # It is read, and becomes the newest.
    index.pool.free(used)
    taken = index.pool.take(2)
    short = [int.from_bytes(digest[-8:], "big") for digest in DIGESTS]
    assert index.take_events().structs() == tuple(
        BlockRemoved(block_hashes=(short[number],), medium=medium, group_idx=number % 2)
        for number in (1, 2)
    )
    assert index.pool.holders(0, DIGESTS[0]) == used
    index.debug.check_integrity(taken)


def tier_of(cache: CacheManager, *keys: tuple[int, bytes]) -> CacheManager:
    """The index of a tier that has these, in slots from 1 on."""
    index = CacheManager(replace(cache.config, medium="CPU"))
    for slot, (group, digest) in zip(index.pool.take(len(keys)), keys, strict=True):
        index.pool.register(slot, group, digest, 4)
        index.pool.free([slot])
    return index


# What to store.


def test_what_is_committed_is_findable_once() -> None:
    cache = CacheManager(config(full(4), window(8, 4), findable=True))
    request = cache.add(TOKENS[:9])
    hashes = cache.tiers.block_hashes(request)
    compute(cache, request, [5])
    tables = cache.blocks(request)
    assert cache.tiers.take_findable() == [
        Findable(group, tables[group][0], hashes[0], 4, request) for group in (0, 1)
    ]
    assert cache.allocate([Need(request=request, num_new_tokens=4)]).num_fit == 1
    cache.take_work()
    cache.release([request])
    assert cache.tiers.take_findable() == [
        Findable(group, tables[group][1], hashes[1], 8, request) for group in (0, 1)
    ]
    compute(cache, cache.add(TOKENS[:9]), [9], hit=8)
    assert cache.tiers.take_findable() == []


def test_what_is_loaded_is_findable_when_it_is_committed() -> None:
    cache = CacheManager(config(full(4), findable=True))
    request = cache.add(TOKENS[:9])
    need = Need(request=request, num_new_tokens=0, num_external_tokens=8, delay_commit=True)
    assert cache.allocate([need]).num_fit == 1
    assert cache.tiers.take_findable() == []
    cache.commit(request, 4)
    assert [found.num_tokens for found in cache.tiers.take_findable()] == [4]
    cache.commit(request, 8)
    assert [found.num_tokens for found in cache.tiers.take_findable()] == [8]


def test_what_is_no_longer_found_is_not_listed() -> None:
    cache = CacheManager(config(full(4), mamba(4), findable=True))
    request = cache.add(TOKENS[:12])
    compute(cache, request, [8])
    first, second = cache.blocks(request)[0]
    cache.pool.forget([first])
    assert [found.block_id for found in cache.tiers.take_findable()] == [second]
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=4)]).num_fit == 1
    cache.preempt([request])  # Its step never ran.
    assert cache.tiers.take_findable() == []


def test_what_nobody_takes_does_not_pile_up() -> None:
    cache = CacheManager(config(full(4), num_blocks=6, findable=True))
    for start in range(0, 400, 20):
        leave(cache, range(start, start + 20), 20)
    listed = cache.tiers.take_findable()
    assert {(f.group, f.block_hash): [f.block_id] for f in listed} == cache.debug.cached()
    assert len(listed) == 5


def test_a_cache_that_notes_nothing_says_so() -> None:
    with pytest.raises(InvalidValueError, match="findable is off"):
        CacheManager(config(full(4))).tiers.take_findable()


# What to load.


def holed() -> tuple[CacheManager, int, list[bytes]]:
    """A cache that has a prompt, except one block of full attention; a request for it; hashes."""
    cache = CacheManager(config(full(4), window(8, 4)))
    leave(cache, TOKENS[:20], 20)
    request = cache.add(TOKENS[:18])
    hashes = cache.tiers.block_hashes(request)
    cache.pool.forget(cache.pool.holders(0, hashes[2]))
    return cache, request, hashes


def test_a_tier_fills_a_gap_and_the_pool_has_what_comes_after_it() -> None:
    cache, request, hashes = holed()
    assert cache.match(request).num_tokens == 8
    host = tier_of(cache, (1, hashes[0]), (0, hashes[2]))
    found = cache.tiers.match_over(request, [tier_of(cache).pool, host.pool])
    assert found.num_pool_tokens == found.match.num_tokens == 8
    assert (found.num_tokens, found.num_external_tokens) == (16, 8)
    (last,), *windows = (
        cache.pool.holders(group, hashes[place]) for group, place in ((0, 3), (1, 2), (1, 3))
    )
    assert found.fills() == [
        Fill(0, 2, 2, host.pool.holders(0, hashes[2])[0]),
        Fill(0, 3, 0, last),
        Fill(1, 2, 0, windows[0][0]),
        Fill(1, 3, 0, windows[1][0]),
    ]
    assert list(found.sources) == [2, 0, 0, 0]
    host.debug.check_integrity()


def test_without_anything_to_load_a_hit_over_tiers_is_that_of_the_pool() -> None:
    cache, request, hashes = holed()
    for tiers in ([], [tier_of(cache, (0, hashes[3])).pool]):
        found = cache.tiers.match_over(request, tiers)
        assert found.match == cache.match(request)
        assert (found.num_tokens, found.num_external_tokens, found.fills()) == (8, 0, [])


def test_what_was_found_is_allocated_and_found_by_others_when_it_has_arrived() -> None:
    cache, request, hashes = holed()
    found = cache.tiers.match_over(request, [tier_of(cache, (0, hashes[2])).pool])
    cache.start_step()
    need = Need(
        request=request,
        num_new_tokens=0,
        match=found.match,
        num_external_tokens=found.num_external_tokens,
        delay_commit=True,
    )
    assert cache.allocate([need]).num_fit == 1
    assert all(cache.blocks(request)[fill.group][fill.position] for fill in found.fills())
    cache.commit(request, found.num_tokens)
    assert cache.match(cache.add(TOKENS[:18])).num_tokens == 16


def test_a_load_after_a_hit_inside_a_block_begins_before_that_block() -> None:
    topology = {"hash_block_size": 4, "partial_hits": True}
    cache = CacheManager(config(full(4), mamba(8), topology=topology))
    leave(cache, TOKENS[:13], 4)
    request = cache.add(TOKENS[:26])
    assert cache.match(request).num_tokens == 12
    hashes = cache.tiers.block_hashes(request)
    host = tier_of(cache, *((0, digest) for digest in hashes), (1, hashes[4]))
    found = cache.tiers.match_over(request, [host.pool])
    assert (found.match.num_tokens, found.num_pool_tokens, found.num_tokens) == (8, 12, 20)
    kept = cache.pool.holders(0, hashes[2])[0]
    slots = [host.pool.holders(group, hashes[n])[0] for group, n in ((0, 3), (0, 4), (1, 4))]
    assert found.fills() == [
        Fill(0, 2, 0, kept),
        Fill(0, 3, 1, slots[0]),
        Fill(0, 4, 1, slots[1]),
        Fill(1, 2, 1, slots[2]),
    ]


def test_a_load_of_whole_blocks_ends_where_blocks_of_all_groups_end() -> None:
    topology = {"hash_block_size": 4, "partial_hits": True}
    cache = CacheManager(config(full(4), mamba(8), topology=topology))
    request = cache.add(TOKENS[:15])
    hashes = cache.tiers.block_hashes(request)
    entries = [(group, digest) for group in range(2) for digest in hashes]
    tiers = [tier_of(cache, *entries).pool]
    assert cache.tiers.match_over(request, tiers).num_tokens == 12
    assert cache.tiers.match_over(request, tiers, whole_blocks=True).num_tokens == 8
    leave(cache, TOKENS[:13], 4)
    assert cache.tiers.match_over(request, tiers, whole_blocks=True).num_tokens == 12


def test_tiers_that_cannot_be_meant_are_refused_by_number() -> None:
    cache, request, _ = holed()
    host = tier_of(cache)
    other = CacheManager(config(full(4), window(9, 4)))
    for tiers, says in (
        ([host, other], r"tiers\[1\] has other groups"),
        ([cache], r"tiers\[0\] is the cache itself"),
        ([host, host], r"tiers\[1\] is the cache itself, or an earlier tier"),
    ):
        with pytest.raises(InvalidValueError, match=says):
            cache.tiers.match_over(request, [tier.pool for tier in tiers])
    with pytest.raises(UnknownError):
        cache.tiers.match_over(request + 1, [host.pool])


def test_caches_that_look_each_other_up_at_once_do_not_wait_for_ever() -> None:
    """Each thread looks over the other's cache, which holds the same."""
    caches = [holed()[0] for _ in range(2)]
    requests = [cache.add(TOKENS[:18]) for cache in caches]

    def look(own: int) -> None:
        for _ in range(2_000):
            caches[own].tiers.match_over(requests[own], [caches[1 - own].pool])

    threads = [Thread(target=look, args=(own,), daemon=True) for own in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=50)
        assert not thread.is_alive()
