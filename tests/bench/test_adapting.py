"""Retention by value on traffic of all kinds: what it remembers, and which policy it follows."""

from array import array
from collections.abc import Sequence
from hashlib import sha256
from itertools import count, islice

import pytest
from kvbraid.cache import ByValue, CacheManager, Dense, EvictionPolicy, Interval, Need
from kvbraid.errors import InvalidValueError

from bench.retention.play import MODELS, Engine, hit_rate
from bench.retention.workloads import (
    WORKLOADS,
    Ask,
    Shape,
    Texts,
    asks,
    hot_prefix,
    second_requests,
)
from tests.unit.cache.caches import config, full, is_played, play, window

HALF = Shape(length=0.5, count=0.5)


def hits_of(engine: Engine, played: Sequence[Ask]) -> list[int]:
    hits = [(engine.serve(ask.tokens), ask.reusable) for ask in played]
    engine.cache.debug.check_integrity()
    return [hit for hit, reusable in hits if reusable]


@pytest.mark.parametrize(("model", "pool"), [("full", 600), ("gptoss", 700), ("gemma", 2_000)])
def test_a_prefix_that_was_shared_once_outlives_prompts_that_never_were(
    model: str, pool: int
) -> None:
    """The pool turns over twice between two uses, and all that continued from it has gone."""
    shape = MODELS[model]
    engine = Engine(shape, pool, ByValue(policy=EvictionPolicy.VALUE))
    played = list(hot_prefix("a", 20, 8, shape.unit))
    twice = [played[0], Ask(played[0].tokens[:900] + Texts("b").text(100), 896)]
    warm = [Ask(text, 0) for text in Texts("c").texts(60, 1_000)]
    hits_of(engine, warm + twice + twice[1:])
    assert hits_of(engine, played[1:]) == [896] * 7


@pytest.mark.parametrize("num_blocks", [4_000, 9_000])
@pytest.mark.parametrize("model", ["gptoss", "gemma"])
@pytest.mark.parametrize("distance", [0, 1, 5])
def test_on_a_full_pool_the_second_request_of_a_prefix_reuses_it(
    model: str, distance: int, num_blocks: int
) -> None:
    engine = Engine(MODELS[model], num_blocks, ByValue())
    played = list(second_requests("a", distance, 4, 16, fill=num_blocks // 60))
    assert hits_of(engine, played) == [896] * 4


def test_no_change_values_many_siblings_again() -> None:
    """One junction with 1 000 prompts after it loses its window: what each of them saves changes,
    and valuing 20 000 of them again would take milliseconds."""
    num_siblings = 1_000
    retention = ByValue(policy=EvictionPolicy.VALUE)
    cache = CacheManager(
        config(full(), window(32), num_blocks=9 * num_siblings, retention=retention, events=False)
    )
    texts = Texts("a")
    base = texts.text(320)
    hits = []
    for _ in range(num_siblings):
        request = cache.add(base + texts.text(50))
        match = cache.match(request)
        hits.append(match.num_tokens)
        need = Need(request=request, num_new_tokens=370 - match.num_tokens, match=match)
        assert cache.allocate([need]).num_fit == 1
        cache.take_work()
        cache.start_step()
        cache.release([request])
    assert hits[-1] == 320
    block = cache.hit_blocks(cache.add(base + texts.text(50)), 320)[1][-1]
    before = {each.block_hash: each.value for each in cache.debug.checkpoints()}
    cache.pool.forget([block])
    after = {each.block_hash: each.value for each in cache.debug.checkpoints()}
    assert len(before) > num_siblings
    assert len(after) == len(before) - 1
    assert sum(value != before[each] for each, value in after.items()) <= 64


def test_the_policy_follows_traffic_that_changes_its_nature() -> None:
    """Every 500 requests chats become prefixes that many share, or turn back."""
    played = asks(WORKLOADS["turning"], "b", 1_500, HALF)
    model, pool = MODELS["gptoss"], 700
    engine = Engine(model, pool, ByValue())
    names, reused, choice = [], 0, engine.cache.policy_choice()
    for ask in played:
        reused += engine.serve(ask.tokens)
        choice = engine.cache.policy_choice()
        names.append(choice.now.name if choice else "none")
    assert choice is not None
    assert choice.num_requests == len(played)
    assert len(set(names)) > 1
    assert choice.num_changes == sum(
        a != b for a, b in zip(["value", *names], names, strict=False)
    )
    total = sum(len(ask.tokens) for ask in played)
    rivals = (Dense(), Interval(0), Interval(1_024))
    best = max(hit_rate(model, pool, rival, played, warm_up=0) for rival in rivals)
    assert 100 * reused / total > best - 3


@pytest.mark.parametrize("name", ["chat", "shift", "short_only", "hot_scan"])
def test_it_is_not_far_below_the_best_policy_of_an_engine(name: str) -> None:
    model, played = MODELS["gptoss"], asks(WORKLOADS[name], "b", 1_000, HALF)
    rates = [
        hit_rate(model, 700, policy, played) for policy in (ByValue(), *model.rivals.values())
    ]
    assert rates[0] >= max(rates[1:]) - 2


@pytest.mark.parametrize(
    ("name", "model", "pool"),
    [("turning", "gptoss", 4_000), ("short_long", "gptoss", 1_500), ("turning", "full", 1_500)],
)
def test_with_other_seeds_and_shapes_it_is_at_most_a_point_below_the_best_policy_of_an_engine(
    name: str, model: str, pool: int
) -> None:
    played = asks(WORKLOADS[name], f"a-{name}", 1_500, Shape(length=0.7, count=1.3))
    shape = MODELS[model]
    rates = [
        hit_rate(shape, pool, policy, played) for policy in (ByValue(), *shape.rivals.values())
    ]
    assert rates[0] >= max(rates[1:]) - 1


def test_steps_do_not_end_where_nothing_is_resumed() -> None:
    """Prefixes that come back too late are shared, but no checkpoint of theirs is resumed."""
    played = asks(WORKLOADS["loop"], "b", 1_000, Shape())
    engine = Engine(MODELS["mamba"], 400, ByValue())
    plain = Engine(MODELS["mamba"], 400, Interval(0))
    caches = (engine, plain)
    for ask in played[:300]:
        assert [cache.serve(ask.tokens) for cache in caches] == [0, 0]
    before = [cache.num_steps for cache in caches]
    for ask in played[300:]:
        assert [cache.serve(ask.tokens) for cache in caches] == [0, 0]
    ours, theirs = (cache.num_steps - old for cache, old in zip(caches, before, strict=True))
    more = ours / theirs
    assert more < 1.02


def test_the_policy_is_a_function_of_what_the_cache_saw() -> None:
    played = asks(WORKLOADS["chat"], "b", 300, HALF)
    engines = [Engine(MODELS["gptoss"], 700, ByValue()) for _ in range(2)]
    for ask in played:
        assert engines[0].serve(ask.tokens) == engines[1].serve(ask.tokens)
        assert engines[0].cache.policy_choice() == engines[1].cache.policy_choice()


def test_a_choice_says_since_when_and_what_it_gains() -> None:
    engine = Engine(MODELS["gptoss"], 700, ByValue())
    hits_of(engine, asks(WORKLOADS["chat"], "b", 300, HALF))
    choice = engine.cache.take_statistics().policy_choice
    assert choice is not None
    assert choice == engine.cache.policy_choice()
    assert 0 < choice.since <= choice.num_requests == 300
    assert choice.now.name not in choice.gains
    assert {"dense", "value", "interval-0", "interval-1024", "interval-8192"} == {
        choice.now.name,
        *choice.gains,
    }
    assert choice.gains["dense"] > 0


def test_a_fixed_policy_has_no_simulated_caches() -> None:
    fixed = CacheManager(config(full(), retention=ByValue(policy=EvictionPolicy.VALUE)))
    adapting = CacheManager(config(full(), retention=ByValue()))
    assert fixed.policy_choice() is None
    assert adapting.policy_choice() is not None
    assert fixed.debug.memory_bytes() < adapting.debug.memory_bytes()
    with pytest.raises(InvalidValueError, match="expected a EvictionPolicy"):
        ByValue(policy="value")  # type: ignore[arg-type]


def test_simulated_caches_of_a_large_pool_stay_small() -> None:
    """A block of 16 tokens has at least 16 KiB in one layer of any model in use."""
    engine = Engine(MODELS["gptoss"], 40_000, ByValue())
    fixed = Engine(MODELS["gptoss"], 40_000, ByValue(policy=EvictionPolicy.VALUE))
    for prompt in islice(WORKLOADS["zipf"](Texts("a"), Shape()), 600):
        engine.serve(prompt)
        fixed.serve(prompt)
    engine.cache.debug.check_integrity()
    more = engine.cache.debug.memory_bytes() - fixed.cache.debug.memory_bytes()
    assert more < 0.03 * 16 * 1_024 * 40_000


def test_a_large_pool_plays_one_family_in_eight() -> None:
    """It is 32 times as large as a simulated one, which saves something if it plays something."""
    hashes = (sha256(b"%d" % number).digest() for number in count())
    first = next(each for each in hashes if is_played(each, 8) and not is_played(each, 32))
    cache = CacheManager(
        config(full(128), num_blocks=32 * 8_192, retention=ByValue(), events=False)
    )
    play(cache, [first], 128)
    assert play(cache, [first], 128).now.share > 0


def test_a_sample_that_is_not_like_the_rest_costs_no_more_than_the_worst_policy() -> None:
    """What is played is a prefix that returns when a pool of windows has turned over; what is not
    are pairs of requests that branch where no checkpoint is. They see only the former."""
    groups = (full(), window(2_048), window(2_048))
    numbers = count()

    def hashes(num_blocks: int, *, played: bool | None = None) -> list[bytes]:
        """Hashes of blocks of 128 tokens, which simulated caches have, in parts of 16 tokens."""
        while True:
            base = next(numbers)
            found = [sha256(b"%d %d" % (base, at)).digest() for at in range(8 * num_blocks)]
            if played is None or is_played(found[7], 2) is played:
                return found

    hot = hashes(60, played=True)
    requests: list[list[bytes]] = []
    for _ in range(24):
        requests.append(hot + hashes(4))
        for at in range(5):
            pairs = [hashes(40 + (7 * at + more) % 37, played=False) for more in range(6)]
            requests += [hashes(60, played=True) for _ in pairs]
            requests += [pair + hashes(24) for pair in pairs * 2]

    def reused(retention: ByValue) -> int:
        cache = CacheManager(config(*groups, num_blocks=66_000, retention=retention, events=False))
        total = 0
        for blocks in requests:
            num_tokens = 16 * len(blocks) + 1
            request = cache.add(array("I", bytes(4 * num_tokens)), block_hashes=blocks)
            match = cache.match(request)
            left = num_tokens - match.num_tokens
            need = Need(request=request, num_new_tokens=left, match=match)
            assert cache.allocate([need]).num_fit == 1
            cache.take_work()
            cache.start_step()
            cache.release([request])
            total += match.num_tokens
        choice = cache.policy_choice()
        if choice is not None:
            assert choice.num_requests == len(requests)
            assert choice.now.policy is not EvictionPolicy.DENSE, "the sample should fool it"
        return total

    found = reused(ByValue())
    fixed = {policy: reused(ByValue(policy=policy)) for policy in EvictionPolicy}
    assert fixed[EvictionPolicy.DENSE] > 1.1 * found, "nobody was fooled"
    assert found > 0.95 * min(fixed.values())
