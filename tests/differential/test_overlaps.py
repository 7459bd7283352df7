"""What is learned of the lengths at which requests branch off, against its brute-force model.

Requests share prefixes of few lengths, so lengths come back, and the pool is small, so what is
known of them goes beyond what is held.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kvbraid.cache import ByValue, CacheManager, Lean, Match, Need
from kvbraid.spec import GroupSpec

from tests.reference.cache_by_value import ByValueModel
from tests.unit.cache.caches import config, full, mamba, window

MIXES = {
    "windows": [full(4), window(9, 4)],
    "states": [full(4), mamba(4)],
    "states of larger blocks": [full(4), mamba(8)],
    "a draft head": [full(4, eagle=True), window(9, 4)],
    "states alone": [mamba(4)],
}


def prompts(seed: str, count: int) -> Iterator[list[int]]:
    """Prefixes of two lengths, each of which is used a few times, and chats that go on."""
    draw = random.Random(seed)
    families: list[list[int]] = []
    chat: list[int] = []

    def text(length: int) -> list[int]:
        return [draw.randrange(1 << 20) for _ in range(length)]

    for _ in range(count):
        if len(families) < 3 or draw.random() < 0.2:
            families = [*families[-3:], text(draw.choice((10, 17)))]
        if draw.random() < 0.2:
            chat = chat + text(5) if len(chat) < 24 else text(6)
            yield chat
        else:
            yield draw.choice(families) + text(draw.randrange(1, 13))


def serve(native: CacheManager, model: ByValueModel, tokens: list[int], *, budget: int) -> Match:
    """Play one request through both, in the steps that the cache plans."""
    request, twin = native.add(tokens), model.add(tokens)
    match = native.match(request)
    assert match == model.match(twin)
    assert native._core.stops(request) == model.stops(request)
    done, first = match.num_tokens, True
    while done < len(tokens):
        count = native.plan_chunk(request, budget, match=match if first else Match(0, 0))
        need = Need(
            request=request,
            num_new_tokens=count,
            num_hit_tokens=done if first else 0,
            junction=match.junction if first else None,
        )
        native.start_step()
        model.start_step()
        assert native.allocate([need]).num_fit == 1
        model.allocate([replace(need, request=twin)])
        done, first = done + count, False
    native.start_step()
    native.release([request])
    model.start_step()
    model.release([twin])
    return match


@pytest.mark.parametrize("seed", ["a", "b"])
@pytest.mark.parametrize("mix", MIXES)
def test_what_is_learned_is_what_the_model_learns(mix: str, seed: str) -> None:
    groups: list[GroupSpec] = MIXES[mix]
    chosen = config(*groups, num_blocks=24, retention=ByValue(lean=Lean.VALUE))
    native, model = CacheManager(chosen), ByValueModel(chosen)
    has_stops = num_hits = 0
    for tokens in prompts(f"{mix} {seed}", 200):
        num_hits += serve(native, model, tokens, budget=64).num_tokens > 0
        has_stops += bool(model.stops(0))
        points = model.checkpoints
        found = [(c.block_hash, c.num_tokens) for c in native.debug.checkpoints()]
        assert found == [(point.path[-1], point.end) for point in points.queue()]
        native.debug.check_integrity()
    assert has_stops > 20, "a length has to come back"
    assert num_hits > 10


@pytest.mark.parametrize("mix", ["windows", "states"])
def test_lengths_that_are_not_worth_a_step_are_tried_again_as_the_model_says(mix: str) -> None:
    """Prefixes of two lengths come back when all of them has been evicted."""
    chosen = config(*MIXES[mix], num_blocks=24, retention=ByValue(lean=Lean.VALUE))
    native, model = CacheManager(chosen), ByValueModel(chosen)
    draw = random.Random(mix)

    def text(length: int) -> list[int]:
        return [draw.randrange(1 << 20) for _ in range(length)]

    families = [text(8 if number % 3 else 16) for number in range(12)]
    tried = {}
    for number in range(135):
        match = serve(native, model, families[number % 12] + text(5), budget=64)
        assert not match.num_tokens
        tried[number] = len(model.stops(number))
    assert len(model.overlaps.expected) > 1
    assert [number for number, count in tried.items() if count and number > 60] == [64, 128]
    assert tried[64] == tried[128] == 1


def test_lengths_that_come_back_but_save_little_are_not_worth_a_step() -> None:
    """Always four prompts begin alike: a resume saves 8 tokens of 216, less than one in 24."""
    chosen = config(*MIXES["states"], num_blocks=200, retention=ByValue(lean=Lean.VALUE))
    native, model = CacheManager(chosen), ByValueModel(chosen)
    draw = random.Random(1)
    families = [[draw.randrange(1 << 20) for _ in range(8)] for _ in range(34)]
    num_hits, tried = 0, []
    for number in range(135):
        own = [draw.randrange(1 << 20) for _ in range(208)]
        num_hits += serve(native, model, families[number // 4] + own, budget=64).num_tokens > 0
        tried += [number] if model.stops(number) else []
    assert num_hits > 20
    assert model.overlaps.expected == [8]
    assert [number for number in tried if number > 80] == [128], tried
