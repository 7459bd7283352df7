"""A copy of a cache has all that its original has, and goes its own way from then on."""

from kvbraid.cache import CacheManager, GroupOptions, Need

from tests.unit.cache.caches import compute, config, full, leave, mamba, picture, window

TOKENS = list(range(40))


def test_a_copy_has_the_requests_and_all_that_was_not_taken_yet() -> None:
    options = (GroupOptions(needs_zeroing=True), GroupOptions(), GroupOptions())
    cache = CacheManager(config(full(4), window(9, 4), mamba(4), group_options=options))
    leave(cache, TOKENS, 4)
    request = cache.add(TOKENS)
    compute(cache, request, [40], hit=36)
    held = cache.pool.take(1)
    twin = cache.copy()
    assert picture(twin, [request]) == picture(cache, [request])
    assert twin.pool.num_held == 1
    assert twin.debug.cursors(request) == cache.debug.cursors(request)
    assert twin.debug.fresh_states() == cache.debug.fresh_states()
    assert twin.take_statistics() == cache.take_statistics()
    events, work = twin.take_events(), twin.take_work()
    assert len(events) > 0
    assert work.blocks_to_zero
    assert (events, work) == (cache.take_events(), cache.take_work())
    twin.debug.check_integrity(held)


def test_what_happens_to_a_copy_does_not_happen_to_its_original() -> None:
    cache = CacheManager(config(full(4)))
    leave(cache, TOKENS, 40)
    request = cache.add([*TOKENS, 41])
    twin = cache.copy()
    before = picture(cache, [request])
    twin.allocate([Need(request=request, num_new_tokens=1, num_hit_tokens=40)])
    assert twin.blocks(request) != cache.blocks(request)
    twin.release([request])
    assert twin.reset()
    assert picture(cache, [request]) == before
    assert twin.add([1]) == cache.add([1])
    cache.debug.check_integrity()
    twin.debug.check_integrity()


def test_a_class_of_ones_own_is_copied_as_such() -> None:
    class Own(CacheManager):
        """Somebody's."""

    assert type(Own(config(full(4))).copy()) is Own
