"""Requests that go back in place, and what their own tables hold, on caches that one can draw."""

import pytest
from kvbraid.cache import CacheManager, Need, Refusal, ResumePoint, TableEntry, Why
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.ids import BlockId

from tests.unit.cache.caches import chunked, compute, config, full, leave, mamba, window

TOKENS = list(range(24))


def running(cache: CacheManager, *ends: int) -> int:
    """A request that has computed its tokens, in steps that end there."""
    request = cache.add(TOKENS)
    compute(cache, request, ends)
    return request


def again(cache: CacheManager, request: int, end: int) -> None:
    new = end - cache.num_computed_tokens(request)
    assert cache.allocate([Need(request=request, num_new_tokens=new)]).num_fit == 1


def stored_and_removed(cache: CacheManager) -> list[tuple[str, int]]:
    """The kinds of events and the number of their hashes, in order."""
    events = cache.take_events().structs()
    return [
        (type(event).__name__, len(event.block_hashes))
        for event in events
        if isinstance(event, BlockStored | BlockRemoved)
    ]


# ---- going back --------------------------------------------------------------------------


def test_what_is_computed_again_is_registered_again() -> None:
    cache = CacheManager(config(full(4)))
    request = running(cache, 24)
    table, held = cache.blocks(request), cache.debug.cached()
    cache.take_events()
    cache.pool.forget(table[0][2:3])
    cache.tables.rewind(request, 8)
    assert cache.num_computed_tokens(request) == 8
    assert cache.blocks(request) == table
    assert sorted(cache.debug.cached().values()) == [[1], [2]]
    assert stored_and_removed(cache) == [("BlockRemoved", 1)] * 4
    again(cache, request, 16)
    again(cache, request, 24)
    assert cache.blocks(request) == table
    assert cache.debug.cached() == held
    assert stored_and_removed(cache) == [("BlockStored", 2), ("BlockStored", 2)]
    cache.debug.check_integrity()


def test_a_boundary_inside_a_block_makes_this_block_computed_again() -> None:
    cache = CacheManager(config(full(4)))
    request = running(cache, 24)
    held = cache.debug.cached()
    cache.tables.rewind(request, 10)
    assert len(cache.debug.cached()) == 2
    again(cache, request, 24)
    assert cache.debug.cached() == held


def test_what_another_request_holds_stays_findable_and_is_not_announced_again() -> None:
    """The other request has blocks 1 to 4; block 2 is bad, so it is forgotten for both."""
    cache = CacheManager(config(full(4)))
    request = running(cache, 24)
    other = cache.add([*TOKENS[:16], *range(50, 58)])
    compute(cache, other, [24], hit=16)
    held = cache.debug.cached()
    cache.take_events()
    cache.pool.forget([BlockId(2)])
    cache.tables.rewind(request, 4)
    found = sorted(copies for copies in cache.debug.cached().values())
    assert found == [[1], [3], [4], [7], [8]]
    assert stored_and_removed(cache) == [("BlockRemoved", 1)] * 3
    again(cache, request, 24)
    assert stored_and_removed(cache) == [("BlockStored", 1), ("BlockStored", 2)]
    assert cache.debug.cached() == held
    cache.debug.check_integrity()


def test_tokens_in_what_others_still_find_are_not_replaced() -> None:
    """Four tokens of the prompt, the rest was decoded; another request continues from them."""
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS, num_prompt_tokens=4)
    compute(cache, request, [24])
    other = cache.add([*TOKENS[:16], *range(50, 58)])
    compute(cache, other, [24], hit=16)
    cache.tables.rewind(request, 4)
    with pytest.raises(InvalidValueError, match="truncate to 15 of 24 tokens; 16 are"):
        cache.truncate(request, 15)
    cache.release([other])
    cache.tables.rewind(request, 4)
    cache.truncate(request, 4)


@pytest.mark.parametrize(
    ("group", "least"), [(window(5, 4), 20), (window(9, 4), 20), (chunked(8, 4), 16)]
)
def test_a_window_or_chunk_bounds_how_far_a_request_goes_back(group: object, least: int) -> None:
    cache = CacheManager(config(full(4), group))  # type: ignore[arg-type]
    request = running(cache, 23, 24)
    for num_tokens in range(least):
        with pytest.raises(NotHeldError, match=r"group 1 no longer .*its block \d was given back"):
            cache.tables.rewind(request, num_tokens)
    assert cache.num_computed_tokens(request) == 24
    for num_tokens in range(24, least - 1, -1):
        cache.tables.rewind(request, num_tokens)


def test_a_state_never_goes_back() -> None:
    cache = CacheManager(config(full(4), mamba(4)))
    request = running(cache, 8, 24)
    with pytest.raises(NotHeldError, match=r"group 1 .*its state has moved on.*; preempt"):
        cache.tables.rewind(request, 24)


def test_a_preempted_request_starts_anew_after_a_rewind() -> None:
    cache = CacheManager(config(full(4), window(9, 4)))
    request = running(cache, 24)
    cache.take_work()
    cache.tables.rewind(request, 8)
    cache.preempt([request])
    assert cache.match(request).num_tokens == 8
    compute(cache, request, [24], hit=8)
    cache.debug.check_integrity()


# ---- who holds a block -------------------------------------------------------------------


def test_every_entry_of_every_table_is_found() -> None:
    cache = CacheManager(config(full(4), window(5, 4)))
    leave(cache, TOKENS[:8], 8)
    first, second = cache.add(TOKENS[:12]), cache.add(TOKENS[:12])
    for request in (first, second):
        compute(cache, request, [12], hit=8)
    shared, own = cache.blocks(first)[0][0], cache.blocks(second)[1][-1]
    places = cache.tables.requests_of([own, BlockId(0), shared, BlockId(60), own])
    assert places.of(own) == [TableEntry(second, 1, 2)]
    assert places.of(shared) == [TableEntry(first, 0, 0), TableEntry(second, 0, 0)]
    assert places.of(BlockId(0)) == places.of(BlockId(60)) == places.of(BlockId(7)) == []
    assert list(places.block_ids) == [shared, own, 60]
    assert list(places.ends) == [2, 3, 3]


def test_a_block_that_was_given_back_is_in_no_table() -> None:
    cache = CacheManager(config(full(4), window(5, 4)))
    request = running(cache, 8)
    (_, second) = cache.blocks(request)[1]
    again(cache, request, 16)
    again(cache, request, 20)
    assert cache.blocks(request)[1][:3] == [0, 0, 0]
    assert cache.tables.requests_of([second]).of(second) == []


# ---- the longest resume point ------------------------------------------------------------


def point(cache: CacheManager, request: int, *bad: int, **options: object) -> ResumePoint:
    blocks = [BlockId(block) for block in bad]
    return cache.tables.resume_points([request], blocks, **options)[0]  # type: ignore[arg-type]


def test_a_bad_block_is_passed_by_the_groups_that_do_not_need_it() -> None:
    """The example in the core: block 5 of the window is bad."""
    cache = CacheManager(config(full(4), window(12, 4)))
    request = cache.add(range(33))
    compute(cache, request, [20, 32])
    full_blocks, window_blocks = cache.blocks(request)
    assert window_blocks[:2] == [0, 0] != window_blocks[2:4]
    assert point(cache, request).num_tokens == 32
    bad = window_blocks[5]
    assert point(cache, request, bad, max_refusals=3) == (
        20,
        [Refusal(32, 1, 5, bad, Why.BAD)],
    )
    assert point(cache, request, bad, full_blocks[2], max_refusals=3) == (
        0,
        [
            Refusal(32, 0, 2, full_blocks[2], Why.BAD),
            Refusal(32, 1, 5, bad, Why.BAD),
            Refusal(8, 1, 0, BlockId(0), Why.NOT_HELD),
        ],
    )


def test_one_token_is_left_and_no_more_than_the_limit_counts() -> None:
    cache = CacheManager(config(full(4)))
    request = running(cache, 24)
    assert point(cache, request).num_tokens == 20
    assert point(cache, request, limits=[15]).num_tokens == 12
    assert point(cache, request, limits=[0]).num_tokens == 0
    assert point(cache, cache.add(TOKENS)).num_tokens == 0


def test_a_draft_head_needs_one_more_unit_unless_it_was_dropped_before() -> None:
    cache = CacheManager(config(full(4, eagle=True)))
    request = running(cache, 21)
    (table,) = cache.blocks(request)
    assert point(cache, request, max_refusals=1) == (
        16,
        [Refusal(20, 0, 5, table[5], Why.NOT_COMPUTED)],
    )
    assert point(cache, request, drops_unit=False).num_tokens == 20
    assert point(cache, request, table[3]).num_tokens == 8
    assert point(cache, request, table[3], drops_unit=False).num_tokens == 12


def test_a_state_serves_only_its_own_boundary() -> None:
    cache = CacheManager(config(full(4), mamba(4)))
    request = cache.add(range(40))
    compute(cache, request, [8, 20])
    table = cache.blocks(request)[1]
    assert [position for position, block in enumerate(table) if block] == [1, 4]
    assert point(cache, request).num_tokens == 20
    assert point(cache, request, table[4], max_refusals=1) == (
        8,
        [Refusal(20, 1, 4, table[4], Why.BAD)],
    )
    assert point(cache, request, limits=[19], max_refusals=1) == (
        8,
        [Refusal(16, 1, 3, BlockId(0), Why.NOT_HELD)],
    )
