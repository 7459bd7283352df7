"""What a step leaves that never runs, and what is refused because of the step at hand."""

from collections.abc import Sequence

import pytest
from kvbraid.cache import (
    ByValue,
    CacheManager,
    Dense,
    GroupOptions,
    Interval,
    Need,
    NoFit,
    Retention,
)
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.ids import BlockId
from kvbraid.spec import EngineDialect, GroupSpec

from tests.unit.cache.caches import (
    blocks_held,
    chunked,
    compute,
    config,
    full,
    leave,
    mamba,
    picture,
    window,
)

TOKENS = list(range(100, 140))
DENSE = Dense()
MIXES = {
    "full": (full(4),),
    "window": (full(4), window(8, 4)),
    "chunk": (full(4), chunked(12, 4)),
    "states": (full(4), mamba(4)),
    "eagle": (full(4, eagle=True), window(8, 4)),
}
EACH_MIX = pytest.mark.parametrize("groups", MIXES.values(), ids=MIXES.keys())


def started(groups: Sequence[GroupSpec], retention: Retention = DENSE) -> tuple[CacheManager, int]:
    """A cache, and a request to which a step has been given that the device does not have."""
    cache = CacheManager(config(*groups, retention=retention))
    request = cache.add(TOKENS)
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=40)]).num_fit == 1
    return cache, request


def hit(cache: CacheManager, tokens: Sequence[int] = (*TOKENS, 1)) -> int:
    request = cache.add(tokens)
    found = cache.match(request).num_tokens
    cache.release([request])
    return found


# ---- a step that does not run ------------------------------------------------------------


@EACH_MIX
@pytest.mark.parametrize("retention", [Dense(), ByValue()], ids=["dense", "by value"])
@pytest.mark.parametrize("how", ["preempt", "release", "pop_blocks"])
def test_what_never_runs_is_not_found(
    groups: Sequence[GroupSpec], retention: Retention, how: str
) -> None:
    cache, request = started(groups, retention)
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


@EACH_MIX
@pytest.mark.parametrize("retention", [Dense(), ByValue()], ids=["dense", "by value"])
def test_what_the_device_was_given_stays_findable(
    groups: Sequence[GroupSpec], retention: Retention
) -> None:
    cache, request = started(groups, retention)
    cache.take_work()
    cache.preempt([request])
    cache.start_step()
    assert hit(cache) == (36 if groups is MIXES["eagle"] else 40)
    assert cache.take_statistics().num_dropped_blocks == 0


@EACH_MIX
def test_what_a_failed_step_was_to_write_is_not_found(groups: Sequence[GroupSpec]) -> None:
    cache, request = started(groups)
    cache.take_work()
    cache.preempt([request], step_failed=True)
    cache.start_step()
    assert hit(cache) == 0
    assert cache.num_computed_tokens(request) == 0


def test_only_the_last_step_is_dropped() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    compute(cache, request, [20])
    cache.take_work()
    cache.start_step()
    cache.allocate([Need(request=request, num_new_tokens=20)])
    cache.preempt([request])
    assert hit(cache) == 20


def test_a_second_part_of_a_step_is_dropped_alone() -> None:
    """The device has the first part, as an engine gives it that fills two batches at once."""
    cache, first = started((full(4),))
    cache.take_work()
    second = cache.add(range(40))
    cache.allocate([Need(request=second, num_new_tokens=40)])
    cache.release([first, second])
    assert (hit(cache), hit(cache, range(41))) == (40, 0)


def test_what_a_load_has_brought_is_not_dropped() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    cache.start_step()
    need = Need(request=request, num_new_tokens=0, num_external_tokens=20, delay_commit=True)
    cache.allocate([need])
    cache.commit(request, 20)
    cache.preempt([request])
    assert hit(cache) == 20


def test_nobody_leaves_a_step_in_which_others_read_what_it_writes() -> None:
    cache, request = started((full(4),))
    heir = cache.add([*TOKENS, 1])
    cache.allocate([Need(request=heir, num_new_tokens=1, match=cache.match(heir))])
    before = picture(cache, [request, heir])
    for call in (cache.preempt, cache.release):
        with pytest.raises(InvalidValueError, match=f"request {heir} has adopted"):
            call([request])
    with pytest.raises(InvalidValueError, match=f"request {heir} has adopted"):
        cache.pop_blocks(request)
    assert picture(cache, [request, heir]) == before
    cache.preempt([heir, request])
    assert hit(cache) == 0
    cache.debug.check_integrity()


def test_in_the_vllm_dialect_and_without_steps_nothing_is_dropped() -> None:
    for dialect, has_steps in ((EngineDialect.VLLM, True), (EngineDialect.PURE, False)):
        cache = CacheManager(config(full(4), dialect=dialect))
        if has_steps:
            cache.start_step()
        request = cache.add(TOKENS)
        cache.allocate([Need(request=request, num_new_tokens=40)])
        cache.preempt([request], step_failed=True)
        assert hit(cache) == 40


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


def test_a_state_that_a_step_passes_inside_a_block_is_not_taken_for_the_one_at_its_end() -> None:
    """Whoever ends steps elsewhere than `plan_chunk` says loses hits, and finds nothing wrong."""
    for dialect, held in ((EngineDialect.PURE, {4, 16}), (EngineDialect.VLLM, {4, 8, 16})):
        cache = CacheManager(config(full(4), mamba(4), dialect=dialect))
        request = cache.add(TOKENS)
        compute(cache, request, [4, 6, 16])
        assert blocks_held(cache, TOKENS, 4)[1] == held


# ---- why nothing fits --------------------------------------------------------------------


def test_a_request_that_does_not_fit_is_told_why() -> None:
    cache = CacheManager(config(full(4), num_blocks=11, watermark=0.2))
    first, second = cache.add(range(24)), cache.add(range(50, 70))
    done = cache.allocate([Need(request=first, num_new_tokens=24)])
    assert (done.num_fit, done.reason) == (1, None)

    def why(num_new_tokens: int, *, reserved_blocks: int = 0, **fields: bool) -> NoFit | None:
        need = Need(request=second, num_new_tokens=num_new_tokens, **fields)  # type: ignore[arg-type]
        return cache.copy().allocate([need], reserved_blocks=reserved_blocks).reason

    assert why(16) is None
    assert why(17) is NoFit.MEMORY
    assert why(16, is_waiting=True) is NoFit.WATERMARK
    assert why(16, reserved_blocks=1) is NoFit.RESERVED
    assert why(16, full_sequence_must_fit=True) is NoFit.FULL_SEQUENCE


def test_a_state_that_the_step_writes_is_a_reason_to_wait_and_not_to_preempt() -> None:
    cache, _ = started((full(4), mamba(4)))
    second = cache.add([*TOKENS, 1])
    need = Need(request=second, num_new_tokens=1, match=cache.match(second))
    done = cache.allocate([need])
    assert (done.num_fit, done.reason) == (0, NoFit.UNWRITTEN)
    cache.take_work()
    cache.start_step()
    assert cache.allocate([need]).num_fit == 1


def test_a_hit_that_an_earlier_request_of_the_call_evicts_is_a_reason() -> None:
    cache = CacheManager(config(full(4), num_blocks=11))
    leave(cache, TOKENS[:16], 16)
    large, small = cache.add(range(40)), cache.add(TOKENS[:17])
    needs = [
        Need(request=large, num_new_tokens=32),
        Need(request=small, num_new_tokens=1, match=cache.match(small)),
    ]
    done = cache.allocate(needs)
    assert (done.num_fit, done.reason) == (1, NoFit.HIT_EVICTED)


# ---- decoding ----------------------------------------------------------------------------


def three(num_blocks: int, dialect: EngineDialect) -> tuple[CacheManager, list[int]]:
    cache = CacheManager(config(full(4), num_blocks=num_blocks, dialect=dialect))
    requests = [cache.add(range(first, first + 4)) for first in (0, 10, 20)]
    for request in requests:
        cache.allocate([Need(request=request, num_new_tokens=4)])
    return cache, requests


@pytest.mark.parametrize("dialect", [EngineDialect.PURE, EngineDialect.VLLM])
def test_a_request_that_does_not_fit_does_not_get_its_token(dialect: EngineDialect) -> None:
    cache, requests = three(5, dialect)
    done = cache.decode(requests, [7, 8, 9])
    assert (done.num_fit, done.reason) == (1, NoFit.MEMORY)
    assert [cache.num_tokens(request) for request in requests] == [5, 4, 4]
    assert [cache.num_computed_tokens(request) for request in requests] == [5, 4, 4]
    cache.preempt([requests[2]])
    assert cache.decode([requests[1]], [8]).num_fit == 1
    # The token is there once: so says the hash of the block that it is in.
    cache.decode([requests[1]], [1])
    cache.decode([requests[1]], [2])
    cache.decode([requests[1]], [3])
    assert hit(cache, [10, 11, 12, 13, 8, 1, 2, 3, 0]) == 8


def test_a_token_that_ends_a_hash_block_is_taken_back_with_its_hash() -> None:
    cache = CacheManager(config(full(4), window(8, 2), num_blocks=9))
    request = cache.add(range(7))
    cache.allocate([Need(request=request, num_new_tokens=7)])
    held = cache.pool.take(cache.pool.num_free)
    for _ in range(3):
        cache.decode([request], [7])
    assert cache.num_tokens(request) == 8  # The first one fitted.
    assert cache.decode([request], [8]).reason is NoFit.MEMORY
    cache.pool.free(held)
    for token in range(8, 12):
        assert cache.decode([request], [token]).num_fit == 1
    assert hit(cache, range(13)) == 12


def test_only_what_is_computed_decodes() -> None:
    cache, (first, second, third) = three(20, EngineDialect.PURE)
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
    cache, (first, *_) = three(20, EngineDialect.PURE)
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


@pytest.mark.parametrize("group", [window(9, 4), chunked(40, 4)], ids=["window", "chunk"])
def test_no_request_goes_back_to_where_its_window_has_been_given_back(group: GroupSpec) -> None:
    cache, request = running(full(4), group)
    cache.roll_back(request, 40)
    before = picture(cache, [request])
    with pytest.raises(NotHeldError, match=r"group 1 .* going back to 31 tokens \(its block"):
        cache.roll_back(request, 31)
    assert picture(cache, [request]) == before
    assert cache.num_computed_tokens(request) == 40


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


def test_vllm_may_take_back_what_it_likes() -> None:
    cache = CacheManager(config(full(4), mamba(4), dialect=EngineDialect.VLLM))
    request = cache.add(TOKENS)
    compute(cache, request, [40])
    cache.roll_back(request, 7)
    assert cache.num_computed_tokens(request) == 7


# ---- matches and answers -----------------------------------------------------------------


def test_a_need_takes_the_match_with_its_junction() -> None:
    groups, shared = (full(4), window(8, 4)), TOKENS[:20]
    lengths = []
    for as_match in (True, False):
        cache = CacheManager(config(*groups))
        leave(cache, [*shared, *range(20)], 8)
        holders = [b for (g, _), bs in cache.debug.cached().items() if g == 1 for b in bs]
        cache.pool.forget(holders)
        request = cache.add([*shared, *range(50, 70)])
        match = cache.match(request)
        assert (match.num_tokens, match.junction) == (0, 20)
        need = Need(request=request, num_new_tokens=8, match=match)
        if not as_match:
            need = Need(request=request, num_new_tokens=8, junction=20)
        cache.start_step()
        cache.allocate([need])
        assert cache.take_statistics().num_junctions == 1
        lengths.append(cache.plan_chunk(request, 40))
    assert lengths[0] == lengths[1]


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
