"""What a cache promises besides hits, case by case; the manager and its model both run this."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from kvbraid.cache import CacheConfig, CacheManager, GroupOptions, Need
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind

from tests.reference.cache_model import CacheModel
from tests.unit.cache.caches import chunked, compute, config, full, leave, mamba, window

Make: TypeAlias = Callable[[CacheConfig], CacheManager]
VLLM = {"dialect": EngineDialect.VLLM}
CROSS = GroupSpec(kind=SpecKind.CROSS_ATTENTION, block_size=4, prefix_cacheable=False)


def modelled(settings: CacheConfig) -> Any:  # noqa: ANN401 - the model stands in for the manager
    return CacheModel(settings)


@pytest.fixture(params=[CacheManager, modelled], ids=["manager", "model"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def fits(cache: CacheManager, request: int, new: int, **fields: Any) -> bool:  # noqa: ANN401
    reserved = fields.pop("reserved", 0)
    need = Need(request=request, num_new_tokens=new, **fields)
    return cache.allocate([need], reserved_blocks=reserved).num_fit == 1


def test_the_first_that_does_not_fit_stops_the_call(make: Make) -> None:
    cache = make(config(full(4), num_blocks=6))
    requests = [cache.add(range(8)), cache.add(range(20)), cache.add(range(4))]
    needs = [Need(request=r, num_new_tokens=n) for r, n in zip(requests, (8, 20, 4), strict=True)]
    got = cache.allocate(needs)
    assert got.num_fit == 1
    assert got.new_blocks(0) == [[1, 2]]
    assert cache.blocks(requests[1]) == cache.blocks(requests[2]) == [[]]


@pytest.mark.parametrize(("dialect", "freed"), [({}, 0), (VLLM, 2)], ids=["pure", "vllm"])
def test_what_does_not_fit_gives_skipped_blocks_back_as_the_dialect_says(
    make: Make, dialect: dict[str, Any], freed: int
) -> None:
    cache = make(config(full(4), window(4, 4), num_blocks=9, **dialect))
    request = cache.add(range(30))
    assert fits(cache, request, 12)
    assert cache.pool.num_free == 2
    assert not fits(cache, request, 18)
    assert cache.pool.num_free == 2 + freed
    assert cache.blocks(request)[1] == ([0, 0, 6] if freed else [4, 5, 6])


def test_skipped_blocks_make_room_for_the_step_that_skips_them(make: Make) -> None:
    cache = make(config(window(4, 4), num_blocks=4))
    request = cache.add(range(40))
    for _ in range(10):
        assert fits(cache, request, 4)
        assert cache.pool.num_free >= 1


def test_in_flight_tokens_keep_what_they_read(make: Make) -> None:
    cache = make(config(window(4, 4), num_blocks=20))
    request = cache.add(range(40))
    assert fits(cache, request, 12)
    assert fits(cache, request, 4, num_in_flight_tokens=12)
    assert cache.blocks(request) == [[1, 2, 3, 4]]
    cache.free_skipped(request, 12)
    assert cache.blocks(request) == [[0, 0, 3, 4]]


def test_blocks_nobody_can_find_are_reused_before_cached_ones(make: Make) -> None:
    """Freed: 3 has no hash and goes first; 2 is the tail and goes before 1."""
    cache = make(config(full(4), num_blocks=6))
    leave(cache, range(10), 10)
    assert cache.debug.free_queue() == [3, 4, 5, 2, 1]


def test_a_hit_is_pinned_in_all_groups_before_any_takes_a_block(make: Make) -> None:
    """Five of six blocks hold the hit: what comes from elsewhere must not evict it."""
    cache = make(config(full(4), window(5, 4), num_blocks=7))
    leave(cache, range(9), 9)
    request = cache.add([*range(8), *range(50, 62)])
    match = cache.match(request).num_tokens
    assert match == 8
    cached = cache.debug.cached()
    assert not fits(cache, request, 1, num_hit_tokens=8, num_external_tokens=8)
    assert cache.debug.cached() == cached
    assert fits(cache, request, 4, num_hit_tokens=8)
    hit = set(cached)
    assert {key for key in cache.debug.cached() if key in hit} >= {k for k in hit if k[0] == 0}


def test_a_state_of_this_step_is_reused_in_the_next(make: Make) -> None:
    cache = make(config(full(4), mamba(4)))
    first, second = cache.add(range(8)), cache.add(range(9))
    cache.start_step()
    assert fits(cache, first, 8)
    match = cache.match(second)
    assert match.num_tokens == 8
    assert not fits(cache, second, 1, num_hit_tokens=8)
    cache.start_step()
    assert fits(cache, second, 1, num_hit_tokens=8)


def test_external_tokens_on_a_state_are_counted_before_they_are_taken(make: Make) -> None:
    """Two blocks of the full group, one state for what was loaded and one for the step."""
    cache = make(config(full(4), mamba(4), num_blocks=4))
    request = cache.add(range(12))
    assert not fits(cache, request, 4, num_external_tokens=4)
    assert cache.pool.num_free == 3
    cache = make(config(full(4), mamba(4), num_blocks=5))
    assert fits(cache, cache.add(range(12)), 4, num_external_tokens=4)
    assert cache.pool.num_free == 0


def test_a_load_under_way_is_committed_when_it_is_done(make: Make) -> None:
    cache = make(config(full(4), window(5, 4)))
    request = cache.add(range(12))
    assert fits(cache, request, 0, num_external_tokens=11, delay_commit=True)
    assert cache.debug.cached() == {}
    cache.commit(request, 8)
    assert len(cache.debug.cached()) == 3  # Block 0 of the window was never needed.


def test_drafts_have_slots_but_are_not_cached(make: Make) -> None:
    cache = make(config(full(4)))
    request = cache.add(range(7))
    assert fits(cache, request, 9, num_lookahead_tokens=8)
    assert cache.blocks(request) == [[1, 2, 3, 4, 5]]
    assert len(cache.debug.cached()) == 1
    cache.roll_back(request, 7)
    cache.extend(request, [7])
    assert fits(cache, request, 1)
    assert cache.blocks(request) == [[1, 2, 3, 4, 5]]
    assert len(cache.debug.cached()) == 2


def test_draft_blocks_of_a_state_move_along(make: Make) -> None:
    options = (GroupOptions(num_speculative_blocks=2),)
    cache = make(config(mamba(4), group_options=options))
    request = cache.add(range(40))
    assert fits(cache, request, 4)
    assert cache.blocks(request) == [[1, 2, 3]]
    assert fits(cache, request, 8)
    assert cache.blocks(request) == [[1, 0, 3, 2, 4]]
    assert fits(cache, request, 4)
    assert cache.blocks(request) == [[0, 0, 3, 2, 4, 5]]


def test_the_watermark_counts_for_those_who_wait(make: Make) -> None:
    cache = make(config(full(4), num_blocks=10, watermark=0.5))
    request = cache.add(range(20))
    assert not fits(cache, request, 20, is_waiting=True)
    assert fits(cache, request, 16, is_waiting=True)
    assert fits(cache, request, 4)


def test_reserved_blocks_are_left_alone(make: Make) -> None:
    cache = make(config(full(4), num_blocks=6))
    request = cache.add(range(20))
    assert not fits(cache, request, 16, reserved=2)
    assert fits(cache, request, 12, reserved=2)


@pytest.mark.parametrize(("in_flight", "admitted"), [(None, False), (8, True)])
def test_admission_counts_what_a_window_holds_at_most(
    make: Make, in_flight: int | None, admitted: bool
) -> None:
    cache = make(config(window(5, 4), num_blocks=7, max_in_flight_tokens=in_flight))
    request = cache.add(range(40))
    assert fits(cache, request, 8, full_sequence_must_fit=True) is admitted


def test_cross_attention_is_allocated_once_for_the_encoder(make: Make) -> None:
    cache = make(config(full(4), CROSS))
    request = cache.add(range(12))
    assert fits(cache, request, 4, num_encoder_tokens=9)
    assert cache.blocks(request) == [[1], [2, 3, 4]]
    assert fits(cache, request, 8, num_encoder_tokens=9)
    assert cache.blocks(request) == [[1, 5, 6], [2, 3, 4]]
    assert {group for group, _ in cache.debug.cached()} == {0}
    assert cache.match(cache.add(range(9))).num_tokens == 8


def test_a_ring_is_one_block_per_request(make: Make) -> None:
    options = (GroupOptions(), GroupOptions(is_ring=True))
    ring = full(4, prefix_cacheable=False)
    cache = make(config(full(4), ring, group_options=options))
    request = cache.add(range(40))
    for _ in range(3):
        assert fits(cache, request, 12)
    assert len(cache.blocks(request)[1]) == 1


def test_multi_token_drafts_hold_commits_back(make: Make) -> None:
    settings = config(full(4, eagle=True), window(5, 4), num_reprefillable_tokens=2)
    cache = make(settings)
    request = cache.add(range(12))
    assert fits(cache, request, 9)
    assert sorted(group for group, _ in cache.debug.cached()) == [0, 1, 1]
    assert fits(cache, request, 1)
    assert sorted(group for group, _ in cache.debug.cached()) == [0, 0, 1, 1]


def test_vllm_copies_the_furthest_tail_that_the_longest_hit_could_reach(make: Make) -> None:
    """Tails end at 8 and at 12; a prompt of 12 can reuse 11 at most, so vLLM never sees 12."""
    fine = {"hash_block_size": 4, "partial_hits": True}
    cache = make(config(full(16), mamba(16), topology=fine, dialect=EngineDialect.VLLM))
    for num_tokens, hit, ends in ((12, 0, (8, 12)), (14, 8, (12, 14))):
        request = cache.add(range(num_tokens))
        compute(cache, request, ends, hit=hit)
        cache.take_work()
        cache.release([request])
    request = cache.add(range(12))
    assert cache.match(request).num_tokens == 8
    assert fits(cache, request, 1, num_hit_tokens=8)
    assert [source for source, _ in cache.take_work().copies] == [1, 3]


@pytest.mark.parametrize(("dialect", "hit"), [({}, 0), (VLLM, 4)], ids=["default", "vllm"])
def test_by_default_no_hit_is_handed_out_that_is_not_held(
    make: Make, dialect: dict[str, Any], hit: int
) -> None:
    """The chunk of boundary 4 starts at 0. vLLM looks from the start of the chunk of token 9."""
    cache = make(config(full(4), chunked(6, 4), **dialect))
    first = cache.add(range(10))
    assert fits(cache, first, 10)
    cache.pool.forget(cache.blocks(first)[1])
    second = cache.add(range(10))
    assert cache.match(second).num_tokens == hit
    assert fits(cache, second, 10 - hit, num_hit_tokens=hit)
    null_block = 0
    assert [null_block in blocks for blocks in cache.blocks(second)] == [False, hit > 0]


def test_preempted_requests_start_over_on_what_they_left(make: Make) -> None:
    cache = make(config(full(4), window(5, 4)))
    request = cache.add(range(10))
    assert fits(cache, request, 10)
    cache.preempt([request])
    assert cache.blocks(request) == [[], []]
    assert cache.pool.num_free == 63
    assert cache.match(request).num_tokens == 8
    assert fits(cache, request, 2, num_hit_tokens=8)


def test_a_reset_waits_for_the_last_block(make: Make) -> None:
    cache = make(config(full(4)))
    request = cache.add(range(10))
    assert fits(cache, request, 10)
    assert not cache.reset()
    blocks = cache.pop_blocks(request)
    assert not cache.reset()
    cache.pool.free(blocks[::-1])
    assert cache.reset()
    assert cache.debug.cached() == {}
