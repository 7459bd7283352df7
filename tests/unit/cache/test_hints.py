"""`add(..., will_return=...)`: what callers say of the ends of requests, and what it is worth."""

import random
from collections.abc import Iterator

import pytest
from kvbraid.cache import ByValue, CacheManager, Dense, EvictionPolicy, Interval, Need, Retention
from kvbraid.hashing import EngineHash, block_hashes
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import config, full, window

BY_VALUE = ByValue(policy=EvictionPolicy.VALUE)
ENGINE = EngineHash(block_size=16, seed="0")
Hint = bool | float | None


def texts(seed: int, num_blocks: int = 2) -> Iterator[list[int]]:
    """Prompts of so many blocks; none of them begins as another one does."""
    draw = random.Random(seed)
    while True:
        yield [draw.randrange(1 << 32) for _ in range(16 * num_blocks)]


def cache_of(num_blocks: int, *groups: GroupSpec, retention: Retention = BY_VALUE) -> CacheManager:
    mix = groups or (full(),)
    return CacheManager(config(*mix, num_blocks=num_blocks, retention=retention))


def start(cache: CacheManager, tokens: list[int], hint: Hint = None) -> int:
    request = cache.add(tokens, will_return=hint)
    match = cache.match(request)
    need = Need(request=request, num_new_tokens=len(tokens) - match.num_tokens, match=match)
    assert cache.allocate([need]).num_fit == 1
    cache.take_work()
    cache.start_step()
    return request


def serve(cache: CacheManager, tokens: list[int], hint: Hint = None) -> None:
    cache.release([start(cache, tokens, hint)])


def hit(cache: CacheManager, tokens: list[int]) -> int:
    """How much of a prompt that goes on from these tokens would be reused now."""
    request = cache.add([*tokens, 1])
    found = cache.match(request).num_tokens
    cache.release([request])
    return found


def value(cache: CacheManager, tokens: list[int]) -> float:
    """What the checkpoint at the end of these tokens is worth, per token that it saves."""
    name = list(block_hashes(tokens, ENGINE))[-1]
    return next(c.value for c in cache.debug.checkpoints() if c.block_hash == name) / 16


def likelihood(cache: CacheManager, prompts: Iterator[list[int]], hint: Hint) -> float:
    """How likely a request goes on, the cache thinks, from a new end of which this is said."""
    prompt = next(prompts)
    serve(cache, prompt, hint)
    return value(cache, prompt)


@pytest.mark.parametrize("groups", [(full(),), (full(), window(17))])
def test_what_will_not_return_goes_first_however_young_it_is(
    groups: tuple[GroupSpec, ...],
) -> None:
    prompts, cache = texts(1), cache_of(20 * len(groups), *groups)
    stays, goes = next(prompts), next(prompts)
    serve(cache, stays, hint=True)
    serve(cache, goes, hint=False)
    for _ in range(12):
        serve(cache, next(prompts))
    assert (hit(cache, stays), hit(cache, goes)) == (32, 0)


@pytest.mark.parametrize("hint", [True, 0.8, 0.75, 0.5, 0.25, 0.1, False, None])
def test_a_first_hint_counts_as_the_probability_that_it_names(hint: Hint) -> None:
    """In quarters, and as if it were one of eight that were observed before."""
    expected = 0.25 if hint is None else round(4 * hint) / 4
    assert likelihood(cache_of(100), texts(3), hint) == pytest.approx(expected * 8 / 9)


def test_a_hint_is_of_the_end_and_not_of_the_prefix_that_others_share() -> None:
    values = []
    for hint in (None, False):
        prompts, cache = texts(2), cache_of(100, full(), window(17))
        shared = next(prompts)
        for _ in range(3):
            serve(cache, shared + next(prompts), hint)
        values.append(value(cache, shared))
    assert values[0] == values[1] > 0


@pytest.mark.parametrize("num_blocks", [50, 2_000])
def test_hints_that_tell_nothing_soon_count_for_nothing(num_blocks: int) -> None:
    """Every other request goes on after ten others, whatever was said of it. The small pool
    keeps five requests, and at first rather those of which `yes` was said."""
    prompts, draw, cache = texts(4, 8), random.Random(4), cache_of(num_blocks)
    waiting: list[list[int]] = []
    for number in range(1_000):
        prompt = next(prompts)
        serve(cache, prompt, draw.choice((True, False)))
        waiting += [prompt] * (number % 2)
        if len(waiting) > 5:
            serve(cache, waiting.pop(0) + next(prompts))
    yes, no = (likelihood(cache, prompts, hint) for hint in (True, False))
    assert yes == pytest.approx(no, rel=0.5)


def test_who_goes_on_from_several_ends_goes_on_from_the_longest() -> None:
    """Each time two requests end where a third one passes, and the longer of them is hinted."""
    prompts, cache = texts(9), cache_of(2_000)
    for _ in range(100):
        short = next(prompts)
        long = short + next(prompts)
        request = start(cache, long, hint=True)
        serve(cache, short, hint=False)
        cache.release([request])
        serve(cache, long + next(prompts))
    assert likelihood(cache, prompts, hint=True) > 5 * likelihood(cache, prompts, hint=False)


def test_ends_of_which_nothing_is_said_are_likelier_if_the_others_never_return() -> None:
    """An engine may know only which sessions are over."""
    prompts, cache = texts(5), cache_of(400)
    for _ in range(100):
        serve(cache, next(prompts), hint=False)
        prompt = next(prompts)
        serve(cache, prompt)
        serve(cache, prompt + next(prompts), hint=False)
    assert likelihood(cache, prompts, None) > 10 * likelihood(cache, prompts, hint=False)


def test_a_preempted_request_returns_whatever_was_said_of_its_end() -> None:
    values = []
    for hint in (None, False):
        prompts, cache = texts(6), cache_of(100)
        serve(cache, next(prompts), hint=False)  # From now on hints count.
        prompt = next(prompts)
        request = start(cache, prompt, hint)
        cache.preempt([request])
        values.append(value(cache, prompt))
        cache.release([request])
    assert values[0] == values[1] > 0


def test_when_it_restarts_the_hint_is_of_its_end_again() -> None:
    prompts, cache = texts(6), cache_of(100)
    prompt = next(prompts)
    request = start(cache, prompt, hint=False)
    cache.preempt([request])
    match = cache.match(request)
    cache.allocate([Need(request=request, num_new_tokens=32 - match.num_tokens, match=match)])
    cache.take_work()
    cache.release([request])
    assert value(cache, prompt) == 0


@pytest.mark.parametrize(
    "retention",
    [
        Dense(),
        Interval(16),
        ByValue(policy=EvictionPolicy.DENSE),
        ByValue(policy=EvictionPolicy.INTERVAL),
    ],
)
def test_under_another_retention_a_hint_changes_nothing(retention: Retention) -> None:
    hits = []
    for is_told in (True, False):
        prompts, draw = texts(7), random.Random(7)
        cache = cache_of(30, full(), window(17), retention=retention)
        past: list[list[int]] = [next(prompts)]
        for _ in range(60):
            tokens = [*draw.choice(past[-9:]), *next(prompts)]
            past.append(tokens[:64])
            hint = draw.choice((True, False))
            serve(cache, tokens[:64], hint if is_told else None)
        hits.append(cache.take_statistics())
        cache.debug.check_integrity()
    assert hits[0] == hits[1]


def test_hints_take_at_most_eight_bytes_a_block_and_nothing_before_the_first() -> None:
    caches = [cache_of(1_000), cache_of(1_000)]
    for cache, hint in zip(caches, (None, True), strict=True):
        prompts = texts(8)
        for _ in range(50):
            serve(cache, next(prompts), hint)
    without, with_hints = (cache.debug.memory_bytes() for cache in caches)
    assert 0 < with_hints - without <= 8 * 1_000


def test_hints_of_first_turns_and_of_later_ones_are_calibrated_apart() -> None:
    """What is said of a first turn is right, and of a second turn it is said at random."""
    prompts, draw, cache = texts(10), random.Random(10), cache_of(4_000)
    for number in range(300):
        goes_on = number % 2 == 0
        first = next(prompts)
        serve(cache, first, hint=goes_on)
        if goes_on:
            second = first + next(prompts)
            serve(cache, second, hint=draw.choice((True, False)))
            if draw.random() < 0.5:
                serve(cache, second + next(prompts))
    yes, no = (likelihood(cache, prompts, hint) for hint in (True, False))
    assert yes > 5 * no
    later = []
    for hint in (True, False):
        first, second = next(prompts), next(prompts)
        serve(cache, first, hint=True)
        serve(cache, first + second, hint)
        later.append(value(cache, first + second))
    assert later[0] == pytest.approx(later[1], rel=0.5)
