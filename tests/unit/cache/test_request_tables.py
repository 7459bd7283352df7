"""Requests that go back in place, and what their own tables hold, on caches that one can draw."""

import pytest
from kvbraid.cache import CacheManager, Need, Refusal, ResumePoint, Why
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.ids import BlockId

from tests.unit.cache.caches import chunked, compute, config, full, mamba, window

TOKENS = list(range(24))


def running(cache: CacheManager, *ends: int) -> int:
    """A request that has computed its tokens, in steps that end there."""
    request = cache.add(TOKENS)
    compute(cache, request, ends)
    return request


def again(cache: CacheManager, request: int, end: int) -> None:
    new = end - cache.num_computed_tokens(request)
    assert cache.allocate([Need(request=request, num_new_tokens=new)]).num_fit == 1


# ---- going back --------------------------------------------------------------------------


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


# ---- who holds a block -------------------------------------------------------------------


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
