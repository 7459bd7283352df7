"""Requests come, load, fail, are aborted and preempted: no token is lost or computed from garbage.

Prompts share beginnings, pools are small, and failures come in every form; each step's outputs are
checked, and at the end nothing is held. Schedulers are the real ones, the worker is a ghost.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.ghost_connector import Load
from tests.vllm.recovery.ghost_engine import LAYOUTS, GhostEngine
from tests.vllm.recovery.ghost_worker import FORMS, Part
from tests.vllm.soak import IS_SOAK

NUM_LIVES: Final = 60 if IS_SOAK else 4
NUM_STEPS: Final = 100
UNIT: Final = 32


class Life:
    """One engine, and all that happens to it."""

    def __init__(self, name: str, *, is_async: bool, seed: int) -> None:
        self.random = random = Random(f"{name} {is_async} {seed}")
        layout = LAYOUTS[name]
        few = random.random() < 0.5 and "states" not in name  # There, vLLM counts a block too few.
        layout = replace(layout, num_blocks=layout.num_blocks // 2 if few else layout.num_blocks)
        self.engine = GhostEngine(
            layout,
            is_async=is_async,
            policy="fail" if random.random() < 0.1 else "recompute",
            options={"policy": "retry", "retries": 2} if random.random() < 0.3 else {},
            threshold=random.choice((0, 0, 48)),
        )
        self.has_states = "states" in name
        self.engine.connector.offer = self.offer
        self.engine.worker.fails = self.fails
        self.engine.worker.says = self.says
        self.engine.worker.ends = lambda _: random.random() < 0.4
        self.known = [tokens(seed * 10 + number, 200) for number in range(3)]
        self.aborted: set[str] = set()
        self.num_failed = 0

    def offer(self, request: Any, hit: int) -> tuple[int, bool]:  # noqa: ANN401 - vLLM's own type.
        if self.random.random() < 0.3:
            return 0, False
        is_async = self.random.random() < 0.5
        most = request.num_tokens - hit - (not is_async)
        unit = 1 if is_async and not self.has_states and self.random.random() < 0.2 else UNIT
        number = self.random.choice((most, self.random.randint(0, max(most, 0))))
        return max(number - number % unit, 0), is_async

    def fails(self, load: Load, parts: list[Part]) -> list[Part]:
        del load
        if not parts or self.random.random() < 0.6:
            return []
        self.num_failed += 1
        return self.random.sample(
            parts, self.random.choice((1, 1, 2, len(parts))) % len(parts) or 1
        )

    def says(self, load: Load, failed: list[Part], report: Any) -> None:  # noqa: ANN401
        for say in self.random.sample(FORMS, self.random.choice((1, 1, 1, 2))):
            say(load, failed, report)

    def live(self) -> None:
        random, engine = self.random, self.engine
        for number in range(NUM_STEPS):
            if random.random() < 0.25:
                prompt = random.choice(self.known)[: random.randrange(20, 200)]
                end = len(prompt) + random.randrange(1, 40)
                if random.random() < 0.3:  # A load can bring a state at the end of the prompt.
                    end = -(-end // UNIT) * UNIT
                prompt = prompt + tokens(number, end - len(prompt))
                self.known = [*self.known[-3:], prompt]
                engine.add(prompt, random.randrange(1, 12))
            running = [request.request_id for request in engine.scheduler.running]
            if random.random() < 0.05 and engine.scheduler.requests:
                name = random.choice(list(engine.scheduler.requests))
                self.aborted.add(name)
                engine.abort(name)
            elif random.random() < 0.05 and running:
                engine.preempt(random.choice(running))
            engine.step()
        engine.finish()

    def check(self) -> None:
        engine = self.engine
        fails = engine.recovery.policy.value == "fail"
        for name, output in engine.outputs.items():
            ended = name in self.aborted or (fails and name in engine.errors)
            assert ended or len(output) == engine.most[name], name
        assert fails or not engine.errors
        pool = engine.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_whatever_fails_every_request_gets_its_tokens(name: str, is_async: bool) -> None:
    num_recovered = 0
    for seed in range(NUM_LIVES):
        life = Life(name, is_async=is_async, seed=seed)
        life.live()
        life.check()
        num_recovered += life.engine.recovery.counts.recoveries
    assert num_recovered > NUM_LIVES
