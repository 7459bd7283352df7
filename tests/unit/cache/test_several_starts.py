"""Several requests start in one call: each adopts what is held when its turn comes."""

from kvbraid.cache import CacheManager, Need, NoFit

from tests.unit.cache.caches import config, full, leave, window

TOKENS = list(range(40))


def start(request: int, hit: int, end: int) -> Need:
    return Need(request=request, num_new_tokens=end - hit, num_hit_tokens=hit)


def test_two_adopt_the_same_hit() -> None:
    cache = CacheManager(config(full(4), window(9, 4)))
    leave(cache, TOKENS, 40)
    one, other = cache.add(TOKENS), cache.add([*TOKENS, 7])
    hits = [cache.match(request).num_tokens for request in (one, other)]
    assert hits == [36, 40]
    held = [cache.hit_blocks(one, 36), cache.hit_blocks(other, 40)]
    step = cache.allocate([start(one, 36, 40), start(other, 40, 41)])
    assert step.num_fit == 2
    for request, hit in zip((one, other), held, strict=True):
        for table, adopted in zip(cache.blocks(request), hit, strict=True):
            assert table[: len(adopted)] == adopted
    cache.debug.check_integrity()


def test_a_hit_that_one_before_evicts_does_not_fit() -> None:
    cache = CacheManager(config(full(4), num_blocks=14))
    leave(cache, TOKENS, 40)
    evicts, waits = cache.add([9] * 40), cache.add(TOKENS)
    hit = cache.match(waits).num_tokens
    assert hit == 36
    step = cache.allocate([start(evicts, 0, 40), start(waits, hit, 40)])
    assert (step.num_fit, step.reason) == (1, NoFit.HIT_EVICTED)
    assert cache.blocks(waits) == [[]]
    assert cache.match(waits).num_tokens < hit
    cache.debug.check_integrity()


def test_a_hit_that_was_not_adopted_is_no_later_calls_hit() -> None:
    cache = CacheManager(config(full(4), num_blocks=16))
    leave(cache, TOKENS, 40)
    huge, whole, part = cache.add([9] * 80), cache.add(TOKENS), cache.add(TOKENS[:21])
    assert cache.allocate([start(huge, 0, 80), start(whole, 36, 40)]).num_fit == 0
    held = cache.hit_blocks(part, 20)[0]
    assert cache.allocate([start(part, 20, 21)]).num_fit == 1
    assert cache.blocks(part)[0][:-1] == held
    assert len(held) == 5
    cache.debug.check_integrity()
