"""Requests are offloaded and loaded again under both schedulers: each gets its own tokens.

Blocks know what they hold, so a token that is computed from anything but its own prefix is seen at
once. Pools and host memory are small, jobs end late and in any order, ranks disagree, and items
fail. At the end nothing is held, and events have told exactly what the device, host memory and the
disk have.

After each step and reset, the index of a fleet that hears the events, and nothing else, is asked
what a request would hit: its bounds are exact, also after a reset of the cache.
"""

from collections import Counter
from random import Random
from typing import Any, Final

import msgspec
import pytest
from kvbraid.engine import EngineProfile
from kvbraid.hashing import HashAlgo

from tests.tier_predictions import Listener, compare
from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import OffloadingEngine
from tests.vllm.recovery.ghost_engine import LAYOUTS
from tests.vllm.soak import IS_SOAK

if True:  # Only after `ghost_ranks` has imported vLLM with its warnings off.
    from kvbraid.transfer.jobs import Kind
    from kvbraid.transfer.keys import BlockKey
    from vllm.v1.core.kv_cache_utils import get_none_hash_seed

NUM_LIVES: Final = 40 if IS_SOAK else 4
NUM_STEPS: Final = 120


class HeardEngine(OffloadingEngine):
    """An engine, and an index that hears what it publishes. `asked` counts what was compared."""

    def __init__(self, *given: Any, seed: int, **more: Any) -> None:  # noqa: ANN401 - passed on.
        super().__init__(*given, seed=seed, **more)
        topology = self.scheduler.kv_cache_manager.cache.config.topology
        profile = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed=get_none_hash_seed())
        self.listener = Listener(topology, profile)
        self.asked: Counter[str] = Counter()
        self._random = Random(seed)
        self._num_heard = 0

    def process(self) -> None:
        """Use the outputs of a step; what it publishes last is all that has happened so far."""
        super().process()
        self.compare()

    def reset(self) -> None:
        """Have the device forget what it has cached, if it can."""
        if self.scheduler.reset_prefix_cache():
            self.compare()

    def change_weights(self, *, preempts: bool) -> bool:
        if is_changed := super().change_weights(preempts=preempts):
            self.compare()
        return is_changed

    def hear(self) -> None:
        """Listen to what was published meanwhile."""
        for batch in self.published[self._num_heard :]:
            self.listener.hear(msgspec.msgpack.encode(batch))
        self._num_heard = len(self.published)

    def compare(self) -> None:
        """Compare what is said of a branch of one of the latest prompts with what it would hit."""
        self.hear()
        known = [*self._prompts.values()][-8:]
        if not known:
            return
        prompt = self._random.choice(known)
        prompt = prompt[: self._random.randint(1, len(prompt))] + tokens(len(self.published), 9)
        manager = self.scheduler.kv_cache_manager
        request = self.new_request("asked", prompt)
        number = manager.number_of(request)
        for each in compare(self.listener.row(prompt), self.offload, number):
            assert each.bounds.lower <= each.hit <= each.bounds.upper, each
            assert each.is_exact, each
            self.asked[each.key] += 1
            self.asked[f"{each.key} exact"] += each.is_exact
        manager.free(request)


def live(engine: HeardEngine, random: Random, seed: int) -> set[str]:
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
        elif chance < 0.15:
            engine.reset()
        elif chance < 0.2:
            engine.change_weights(preempts=random.random() < 0.7)
        engine.step()
    engine.finish()
    return aborted


@pytest.mark.parametrize("chance", [0.0, 0.05], ids=["sound", "failing"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_request_gets_its_own_tokens(name: str, is_async: bool, chance: float) -> None:
    moved = dict.fromkeys(Kind, 0)
    asked: Counter[str] = Counter()
    num_weights = 0
    for seed in range(NUM_LIVES):
        random = Random(f"{name} {is_async} {chance} {seed}")
        engine = HeardEngine(LAYOUTS[name], is_async=is_async, seed=seed)
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
        asked += engine.asked
        num_weights += engine.worker.weights
        moved = {kind: moved[kind] + n for kind, n in engine.ranks.num_moved.items()}
    assert all(moved[kind] for kind in (Kind.STORE, Kind.LOAD, Kind.WRITE)), moved
    assert num_weights > NUM_LIVES
    assert asked["gpu"] == asked["gpu exact"] > 0
    assert asked["gpu+cpu+storage exact"] > asked["gpu+cpu+storage"] / 2, asked


def test_an_idle_engine_publishes_what_the_disk_has_at_its_start() -> None:
    records = [BlockKey(bytes([number] * 32), 0) for number in range(3)]
    engine = OffloadingEngine(LAYOUTS["full"], is_async=False, seed=0, records=records)
    assert engine.scheduler.has_requests()
    engine.step()
    assert not engine.scheduler.has_requests()
    assert engine.told() == engine.had()
    assert engine.told()["STORAGE"].total() == len(records)
