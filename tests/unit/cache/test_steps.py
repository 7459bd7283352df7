"""What a step leaves that never runs, and what is refused because of the step at hand."""

from collections.abc import Sequence

import pytest
from kvbraid.cache import ByValue, CacheManager, Dense, GroupOptions, Interval, Need, Retention
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.ids import BlockId
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import chunked, compute, config, full, leave, mamba, picture, window

TOKENS = list(range(100, 140))
MIXES = {
    "full": (full(4),),
    "window": (full(4), window(8, 4)),
    "chunk": (full(4), chunked(12, 4)),
    "states": (full(4), mamba(4)),
    "eagle": (full(4, eagle=True), window(8, 4)),
}


def hit(cache: CacheManager) -> int:
    request = cache.add([*TOKENS, 1])
    found = cache.match(request).num_tokens
    cache.release([request])
    return found


# ---- a step that does not run ------------------------------------------------------------


@pytest.mark.parametrize("groups", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("retention", [Dense(), ByValue()], ids=["dense", "by value"])
@pytest.mark.parametrize("how", ["preempt", "release", "pop_blocks"])
def test_what_never_runs_is_not_found(
    groups: Sequence[GroupSpec], retention: Retention, how: str
) -> None:
    """The device was not given the step. `test_cache_manager` says what else is dropped when."""
    cache = CacheManager(config(*groups, retention=retention))
    request = cache.add(TOKENS)
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=40)]).num_fit == 1
    if how == "pop_blocks":
        cache.pool.free([block for block in cache.pop_blocks(request) if block])
    else:
        getattr(cache, how)([request])
    assert hit(cache) == 0
    cache.start_step()
    assert hit(cache) == 0
    assert cache.debug.cached() == {}
    cache.debug.check_integrity()
    events = cache.take_events().structs()
    stored = [h for event in events if isinstance(event, BlockStored) for h in event.block_hashes]
    removed = [h for e in events if isinstance(e, BlockRemoved) for h in e.block_hashes]
    assert sorted(stored) == sorted(removed) != []
    assert cache.take_statistics().num_dropped_blocks == len(removed)


def test_what_a_load_has_brought_is_not_dropped() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    cache.start_step()
    need = Need(request=request, num_new_tokens=0, num_external_tokens=20, delay_commit=True)
    cache.allocate([need])
    cache.commit(request, 20)
    cache.preempt([request])
    assert hit(cache) == 20


# ---- states without steps ----------------------------------------------------------------


def test_a_state_of_a_step_that_was_never_begun_is_refused_and_says_what_to_call() -> None:
    cache = CacheManager(config(full(4), mamba(4)))
    first, second = cache.add(TOKENS), cache.add(TOKENS)
    cache.allocate([Need(request=first, num_new_tokens=36)])
    need = Need(request=second, num_new_tokens=4, match=cache.match(second))
    before = picture(cache, [first, second])
    with pytest.raises(InvalidValueError, match="call start_step before each step"):
        cache.allocate([need])
    assert picture(cache, [first, second]) == before
    cache.start_step()
    assert cache.allocate([need]).num_fit == 1


# ---- decoding ----------------------------------------------------------------------------


def three() -> tuple[CacheManager, list[int]]:
    cache = CacheManager(config(full(4), num_blocks=20))
    requests = [cache.add(range(first, first + 4)) for first in (0, 10, 20)]
    for request in requests:
        cache.allocate([Need(request=request, num_new_tokens=4)])
    return cache, requests


def test_only_what_is_computed_decodes() -> None:
    cache, (first, second, third) = three()
    cache.extend(second, [5, 6])
    cache.preempt([third])
    before = picture(cache, [first, second, third])
    for wrong, says in (
        ([first, first], "given twice"),
        ([first, second], "4 of 6 tokens are computed; allocate the others first"),
        ([first, third], "0 of 4 tokens"),
    ):
        with pytest.raises(InvalidValueError, match=says):
            cache.decode(wrong, [1, 2])
    assert picture(cache, [first, second, third]) == before
    assert [cache.num_tokens(request) for request in (first, second, third)] == [4, 6, 4]


def test_drafts_are_taken_back_before_a_request_decodes() -> None:
    cache, (first, *_) = three()
    cache.allocate([Need(request=first, num_new_tokens=2)])
    with pytest.raises(InvalidValueError, match="6 of 4 tokens are computed; roll back or extend"):
        cache.decode([first], [1])
    cache.roll_back(first, 4)
    assert cache.decode([first], [1]).num_fit == 1


# ---- rolling back ------------------------------------------------------------------------


def running(*groups: GroupSpec, drafts: int = 0) -> tuple[CacheManager, int]:
    """A request of 40 tokens that has computed all of them, and four more in its last step."""
    states = [group.kind is mamba().kind for group in groups]
    options = tuple(GroupOptions(num_speculative_blocks=drafts * state) for state in states)
    cache = CacheManager(config(*groups, group_options=options))
    request = cache.add(TOKENS)
    compute(cache, request, [20, 40])
    cache.extend(request, [1, 2, 3, 4])
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=4)]).num_fit == 1
    return cache, request


def test_full_attention_goes_back_anywhere() -> None:
    cache, request = running(full(4))
    for num_tokens in (44, 43, 40, 17, 0):
        cache.roll_back(request, num_tokens)
        assert cache.num_computed_tokens(request) == num_tokens


def test_a_state_goes_back_by_its_drafts_alone() -> None:
    for drafts, least in ((0, 44), (2, 42), (4, 41)):  # The first token of a step is no draft.
        cache, request = running(full(4), mamba(4), drafts=drafts)
        with pytest.raises(NotHeldError, match="its state has moved on"):
            cache.roll_back(request, least - 1)
        cache.roll_back(request, least)
        with pytest.raises(NotHeldError, match="its state has moved on"):
            cache.roll_back(request, least - 1)


def test_drafts_that_no_state_could_be_taken_back_from_are_refused_before_they_run() -> None:
    options = (GroupOptions(), GroupOptions(num_speculative_blocks=2))
    cache = CacheManager(config(full(4), mamba(4), group_options=options))
    request = cache.add(TOKENS)
    compute(cache, request, [20, 39])
    before = picture(cache, [request])
    wrong = "0: 3 of 4 new tokens are drafts, .* has 40 .* num_speculative_blocks of group 1 is 2"
    with pytest.raises(InvalidValueError, match=wrong):
        cache.allocate([Need(request=request, num_new_tokens=4)])
    assert picture(cache, [request]) == before
    for accepted in (2, 0):
        done = cache.num_computed_tokens(request)
        assert cache.allocate([Need(request=request, num_new_tokens=3)]).num_fit == 1
        cache.start_step()
        cache.roll_back(request, done + 1 + accepted)
        cache.extend(request, range(accepted + 1))


def test_a_token_that_is_not_sampled_yet_is_no_draft() -> None:
    """With two steps in flight, the second begins with what the first one samples."""
    cache = CacheManager(config(full(4), mamba(4)))
    request = cache.add(TOKENS)
    compute(cache, request, [20, 40])
    with pytest.raises(InvalidValueError, match="1 of 2 new tokens are drafts"):
        cache.allocate([Need(request=request, num_new_tokens=2)])
    assert cache.allocate([Need(request=request, num_new_tokens=1)]).num_fit == 1


def test_tokens_after_the_known_ones_are_drafts_which_nobody_finds() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS[:10])
    compute(cache, request, [16])
    assert (cache.num_tokens(request), cache.num_computed_tokens(request)) == (10, 16)
    assert len(cache.blocks(request)[0]) == 4
    assert len(cache.debug.cached()) == 2
    with pytest.raises(InvalidValueError, match="16 of 10 tokens are computed; roll back or"):
        cache.decode([request], [1])
    with pytest.raises(InvalidValueError, match="16 of 10 tokens are computed; roll back or"):
        cache.plan_chunk(request, 8)
    cache.roll_back(request, 10)
    cache.extend(request, [1])
    assert cache.plan_chunk(request, 8) == 1


# ---- matches and answers -----------------------------------------------------------------


def test_a_match_and_its_numbers_are_not_given_together() -> None:
    cache = CacheManager(config(full(4)))
    leave(cache, TOKENS, 40)
    request = cache.add([*TOKENS, 1])
    match = cache.match(request)
    for hit_tokens, junction in ((8, None), (0, 0)):
        need = Need(request=request, num_new_tokens=1, match=match)
        need.num_hit_tokens, need.junction = hit_tokens, junction
        with pytest.raises(InvalidValueError, match="give the match alone"):
            cache.allocate([need])
    assert cache.blocks_needed(Need(request=request, num_new_tokens=1, match=match)) == 11


def test_the_number_of_tokens_grows_with_the_output() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    assert cache.num_tokens(request) == 40
    cache.extend(request, [1, 2])
    assert (cache.num_tokens(request), cache.num_computed_tokens(request)) == (42, 0)


def test_new_blocks_are_asked_for_by_requests_that_fitted() -> None:
    cache = CacheManager(config(full(4), num_blocks=4))
    requests = [cache.add(range(8)), cache.add(range(10, 18))]
    done = cache.allocate([Need(request=request, num_new_tokens=8) for request in requests])
    assert done.new_blocks(0) == [[BlockId(1), BlockId(2)]]
    for wrong in (1, 2, -1):
        with pytest.raises(InvalidValueError, match=f"request {wrong} of the call has no new"):
            done.new_blocks(wrong)


def test_an_interval_is_alike_for_models_with_and_without_windows() -> None:
    for groups in ((full(4),), (full(4), window(8, 4))):
        for retention in (Interval(8), ByValue(interval=8)):
            CacheManager(config(*groups, retention=retention))
        for wrong in (Interval(6), ByValue(interval=6)):
            with pytest.raises(InvalidValueError, match="multiple of the alignment 4"):
                CacheManager(config(*groups, retention=wrong))
