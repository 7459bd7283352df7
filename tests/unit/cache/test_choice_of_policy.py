"""How retention by value decides which policy it follows, by what comes of it."""

import random
from collections.abc import Iterator
from hashlib import sha256
from itertools import count, islice, pairwise

from kvbraid.cache import ByValue, CacheManager, EvictionPolicy, Need

from tests.unit.cache.caches import config, full, is_played, play, window


def hashes_of(num_blocks: int, base: int) -> list[bytes]:
    return [sha256(b"%d %d" % (base, at)).digest() for at in range(num_blocks)]


def returning(draw: random.Random, bases: Iterator[int]) -> Iterator[list[bytes]]:
    """Four prefixes return among prompts that never do: values save most."""
    families = [hashes_of(30, next(bases)) for _ in range(4)]
    while True:
        yield draw.choice(families) + hashes_of(5, next(bases))
        yield hashes_of(45, next(bases))


def parting(bases: Iterator[int]) -> Iterator[list[bytes]]:
    """Two prompts, with another one in between, part where no checkpoint is, at a length that does
    not soon come back: what the engine keeps saves most."""
    for number in count():
        text = hashes_of(25 + 7 * number % 23, next(bases))
        yield text + hashes_of(10, next(bases))
        yield hashes_of(30, next(bases))
        yield text + hashes_of(10, next(bases))


def small_pool() -> CacheManager:
    groups = (full(), window(64))
    return CacheManager(config(*groups, num_blocks=350, retention=ByValue(), events=False))


def test_values_are_left_soon_after_the_traffic_turned_and_not_entered_again() -> None:
    """Long before the last 256 requests speak against them. Until then these still speak for
    values, but the very last ones do not."""
    cache, draw, bases = small_pool(), random.Random(5), count()
    before = [play(cache, hashes, 16) for hashes in islice(returning(draw, bases), 300)][-1]
    assert before.now.policy is EvictionPolicy.VALUE
    after = [play(cache, hashes, 16) for hashes in islice(parting(bases), 60)]
    left = [choice.now.policy is not EvictionPolicy.VALUE for choice in after]
    assert any(left[:30])
    assert all(left[left.index(True) :])
    assert after[-1].num_changes - before.num_changes <= 2


def test_a_few_requests_do_not_end_what_the_engine_does() -> None:
    """Only values are a bet on the past, which the very last requests alone can end."""
    cache, draw, bases = small_pool(), random.Random(6), count()
    before = [play(cache, hashes, 16) for hashes in islice(parting(bases), 300)][-1]
    assert before.now.policy is not EvictionPolicy.VALUE
    after = [play(cache, hashes, 16) for hashes in islice(returning(draw, bases), 60)][-1]
    assert after.num_changes == before.num_changes


def test_policies_that_save_the_same_but_for_chance_are_not_left() -> None:
    cache, draw, bases = small_pool(), random.Random(7), count()
    kinds = (returning(draw, bases), parting(bases))
    drawn = (next(draw.choice(kinds)) for _ in range(600))
    assert [play(cache, hashes, 16) for hashes in drawn][-1].num_changes <= 15


def test_simulated_caches_hear_what_is_said_of_ends() -> None:
    """Half of the prompts are continued. Who hears which keeps those."""
    cache = CacheManager(config(full(), num_blocks=400, retention=ByValue(), events=False))
    draw, waiting = random.Random(8), list[list[int]]()
    for number in range(600):
        text = [draw.randrange(1 << 32) for _ in range(160)]
        goes_on = number % 2 == 0
        for tokens, hint in ((text, goes_on), *((old + text[:16], False) for old in waiting[:1])):
            request = cache.add(tokens, will_return=hint)
            match = cache.match(request)
            left = len(tokens) - match.num_tokens
            assert cache.allocate([Need(request=request, num_new_tokens=left, match=match)])
            cache.take_work()
            cache.start_step()
            cache.release([request])
        waiting = waiting[1:] if number > 60 and number % 2 else waiting
        waiting += [text] * goes_on
    choice = cache.policy_choice()
    assert choice is not None
    assert choice.now.policy is EvictionPolicy.VALUE
    assert choice.gains["dense"] > 0.05, choice


def test_simulated_caches_of_a_large_pool_play_and_count_no_more_than_is_paid_for() -> None:
    """A prompt has 450 blocks of a simulated cache, which has 4 500. The first 160 prompts are the
    first recorded window, and each is played when it ends. Then 160 more are recorded. One of
    these is played for 16 prompts that end, as there are two simulated caches, and the first 40
    do not count.

    All of a prompt or its first half returns in turn, so each that counts changes the share that
    was saved.
    """
    numbers = count()
    cache = CacheManager(config(full(64), num_blocks=9_000, retention=ByValue(), events=False))
    half, rest = hashes_of(450, next(numbers)), hashes_of(450, next(numbers))
    shares = [0.0]
    for number in range(780):
        tail = hashes_of(450, next(numbers)) if number % 2 else rest
        shares.append(play(cache, half + tail, 64).now.share)
    counted = [one != other for one, other in pairwise(shares)]
    assert sum(counted[:40]) >= 38, "the beginning of the first window counts"
    assert sum(counted[:165]) >= 155
    assert not any(counted[165:]), "what is played now is the beginning of the next window"


def test_families_are_told_apart_after_what_all_prompts_have_in_common() -> None:
    """Were the system prompt a family, who plays one family in two would play none."""
    numbers = count()
    system = next(each for each in (hashes_of(5, n) for n in numbers) if not is_played(each[0], 2))
    cache = CacheManager(config(full(128), num_blocks=9_000, retention=ByValue(), events=False))
    prompts = [system + hashes_of(20, next(numbers)) for _ in range(20)]
    played = [play(cache, prompt, 128) for prompt in prompts for _ in range(2)]
    assert played[-1].now.share > 0.3
