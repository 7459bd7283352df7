"""What is counted, and what running requests have in common."""

from kvbraid.cache import CacheManager, Need, Starts

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

TOKENS = list(range(40))


def test_runs_and_their_hits_are_counted_by_first_and_later_ones() -> None:
    cache = CacheManager(config(full(4)))
    leave(cache, TOKENS, 40)
    request = cache.add(TOKENS)
    compute(cache, request, [40], hit=36)
    cache.decode([request], [7])
    cache.preempt([request])
    cache.preempt([request])  # It does not run any more.
    compute(cache, request, [41], hit=40)
    cache.release([request])
    counts = cache.take_statistics()
    assert counts.started == Starts(num_requests=2, num_tokens=80, num_hit_tokens=36)
    assert counts.resumed == Starts(num_requests=1, num_tokens=41, num_hit_tokens=40)
    assert (counts.num_matches, counts.num_preemptions) == (3, 1)
    assert (counts.num_allocated_blocks, counts.num_evicted_blocks) == (13, 0)
    assert cache.take_statistics().started == Starts(0, 0, 0)


def test_what_is_loaded_and_where_requests_branch_off_is_counted() -> None:
    cache = CacheManager(config(full(4), window(5, 4)))
    request = cache.add(TOKENS)
    need = Need(request=request, num_new_tokens=8, num_external_tokens=32, junction=20)
    assert cache.allocate([need]).num_fit == 1
    counts = cache.take_statistics()
    assert (counts.num_external_tokens, counts.num_junctions) == (32, 1)


def test_a_request_that_does_not_fit_has_not_started() -> None:
    cache = CacheManager(config(full(4), num_blocks=6))
    leave(cache, TOKENS[:20], 20)
    cache.take_statistics()
    waits = cache.add(TOKENS)
    assert cache.allocate([Need(request=waits, num_new_tokens=40)]).num_fit == 0
    assert cache.take_statistics().started.num_requests == 0
    other = cache.add([9] * 9)
    compute(cache, other, [9])
    counts = cache.take_statistics()
    assert counts.started == Starts(1, 9, 0)
    assert (counts.num_allocated_blocks, counts.num_evicted_blocks) == (3, 3)


def test_leading_blocks_are_common_until_one_request_has_another() -> None:
    cache = CacheManager(config(full(4), window(9, 4), mamba(4)))
    leave(cache, TOKENS, 4)
    one, other = cache.add(TOKENS), cache.add([*TOKENS[:20], *range(90, 99)])
    compute(cache, one, [40], hit=36)
    compute(cache, other, [29], hit=20)
    assert cache.num_common_prefix_blocks([one, other]) == [5, 0, 0]
    assert cache.num_common_prefix_blocks([one]) == [10, 0, 0]
    assert cache.num_common_prefix_blocks([]) == [0, 0, 0]
    short = [cache.add(TOKENS[:6]) for _ in range(2)]
    for request in short:
        compute(cache, request, [6], hit=4)
    assert cache.num_common_prefix_blocks(short) == [1, 1, 1]
    assert cache.num_common_prefix_blocks([*short, cache.add(TOKENS)]) == [0, 0, 0]
