"""Requests are offloaded and loaded again under both schedulers: each gets its own tokens.

Blocks know what they hold, so a token that is computed from anything but its own prefix is seen at
once. Pools and host memory are small, jobs end late and in any order, ranks disagree, and items
fail. At the end nothing is held, and events have told exactly what the device, host memory and the
disk have.
"""

from random import Random
from typing import Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import OffloadingEngine
from tests.vllm.recovery.ghost_engine import LAYOUTS
from tests.vllm.soak import IS_SOAK

if True:  # Only after `ghost_ranks` has imported vLLM with its warnings off.
    from kvbraid.transfer.jobs import Kind

NUM_LIVES: Final = 40 if IS_SOAK else 4
NUM_STEPS: Final = 120


def live(engine: OffloadingEngine, random: Random, seed: int) -> set[str]:
    """Add, abort and preempt requests, and forget the device's cache; return who was aborted."""
    known = [tokens(seed * 10 + number, 200) for number in range(3)]
    aborted: set[str] = set()
    for number in range(NUM_STEPS):
        made = engine.scheduler
        if random.random() < 0.25:
            prompt = random.choice(known)[: random.choice((random.randrange(20, 200), 200))]
            prompt = prompt + tokens(number, random.randrange(1, 40))
            known = [*known[-4:], prompt]
            engine.add(prompt, random.randrange(1, 12))
        running = [request.request_id for request in made.running]
        chance = random.random()
        if chance < 0.05 and made.requests:
            name = random.choice(list(made.requests))
            aborted.add(name)
            engine.abort(name)
        elif chance < 0.1 and running:
            engine.preempt(random.choice(running))
        elif chance < 0.2:
            made.reset_prefix_cache()
        engine.step()
    engine.finish()
    return aborted


@pytest.mark.parametrize("chance", [0.0, 0.05], ids=["sound", "failing"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_request_gets_its_own_tokens(name: str, is_async: bool, chance: float) -> None:
    moved = dict.fromkeys(Kind, 0)
    for seed in range(NUM_LIVES):
        random = Random(f"{name} {is_async} {chance} {seed}")
        engine = OffloadingEngine(LAYOUTS[name], is_async=is_async, seed=seed)
        engine.ranks.chance_of_failure = chance
        aborted = live(engine, random, seed)
        for request, output in engine.outputs.items():
            assert request in aborted or len(output) == engine.most[request], request
        assert not engine.errors
        assert engine.told() == engine.had()
        assert not engine.offload.held_blocks
        assert engine.offload.counts.num_unknown_results == 0
        pool = engine.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        moved = {kind: moved[kind] + n for kind, n in engine.ranks.num_moved.items()}
    assert all(moved[kind] for kind in (Kind.STORE, Kind.LOAD, Kind.WRITE)), moved
