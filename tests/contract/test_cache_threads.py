"""`match` from many threads while another one changes the cache: each answer was true meanwhile.

A script of operations is first run alone, and the test records what every watched request matches
after each operation. Then the script runs again while other threads match. A matching thread knows
which operations had ended when it called, and which had begun when it got its answer: the answer
must be that of one of the moments between the two.
"""

import sys
from collections.abc import Iterator
from random import Random
from threading import Barrier, Thread
from typing import Final

import pytest
from kvbraid.cache import CacheConfig, CacheManager, Match, Need
from kvbraid.spec import EngineDialect

from tests.unit.cache.caches import config, full, mamba, window

LAYOUTS: Final[dict[str, CacheConfig]] = {
    "full and window": config(full(4), window(9, 4), num_blocks=60),
    "unequal blocks": config(full(4), window(13, 8), mamba(8), num_blocks=90),
    "states inside blocks": config(
        full(4), mamba(8), num_blocks=60, topology={"partial_hits": True, "hash_block_size": 2}
    ),
    "as vLLM does": config(
        full(4, eagle=True),
        window(9, 4),
        mamba(4),
        num_blocks=80,
        dialect=EngineDialect.VLLM,
    ),
}
NUM_MATCHERS: Final = 4
NUM_LIVES: Final = 300
MOST_ROUNDS: Final = 50
LEAST_CHANGING: Final = 100
PROMPTS: Final = tuple([kind] * same + [9] * (60 - same) for kind in (0, 1) for same in (60, 25))


def lives(cache: CacheManager) -> Iterator[None]:
    """Requests come, run, are preempted and go, under eviction. Stops after each operation."""
    random, running = Random(1), list[int]()
    for turn in range(NUM_LIVES):
        prompt = PROMPTS[random.randrange(4)][: random.randint(20, 60)]
        request = cache.add([*prompt, turn])
        yield
        cache.start_step()
        match = cache.match(request)
        end = match.num_tokens
        while end <= len(prompt):
            first, start = end == match.num_tokens, end
            end = min(start // 8 * 8 + 8, len(prompt) + 1)
            hit = match.num_tokens if first else 0
            need = Need(request=request, num_new_tokens=end - start, num_hit_tokens=hit)
            if not cache.allocate([need]).num_fit:
                break
            yield
            cache.start_step()
        running.append(request)
        cache.decode([request], [turn])
        yield
        if turn % 7 == 0:
            cache.preempt(running[:1])
            yield
        if turn % 11 == 0:
            cache.pool.forget([block for block in cache.blocks(request)[0][:2] if block])
            yield
        while len(running) > 2:
            cache.release([running.pop(0)])
            yield
        if turn % 50 == 49:
            cache.release(running)
            running.clear()
            assert cache.reset()
            yield


class Watch:
    """A cache that one thread changes, and others match requests of."""

    def __init__(self, cache_config: CacheConfig) -> None:
        self.cache = CacheManager(cache_config)
        self.watched = [self.cache.add([*prompt, 5]) for prompt in PROMPTS]
        self.num_begun = self.num_over = 0  # Operations of the script.
        self.is_done = False
        self.failures: list[BaseException] = []

    def answers(self) -> tuple[Match, ...]:
        return tuple(self.cache.match(request) for request in self.watched)

    def change(self, start: Barrier) -> None:
        start.wait()
        try:
            script = lives(self.cache)
            while True:
                self.num_begun += 1
                next(script)
                self.num_over += 1
        except StopIteration:
            self.num_over += 1
        except BaseException as error:  # noqa: BLE001 - the main thread raises it.
            self.failures.append(error)
        finally:
            self.is_done = True

    def look(self, start: Barrier, seen: list[tuple[int, int, int, Match]]) -> None:
        """Match in turn; note what had ended before, what had begun after, and the answer."""
        start.wait()
        try:
            while not self.is_done:
                for index, request in enumerate(self.watched):
                    num_over = self.num_over
                    match = self.cache.match(request)
                    seen.append((index, num_over, self.num_begun, match))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it.
            self.failures.append(error)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("cache_config", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_match_was_true_while_it_was_asked_for(cache_config: CacheConfig) -> None:
    alone = Watch(cache_config)
    truth = [alone.answers(), *(alone.answers() for _ in lives(alone.cache))]
    truth.append(alone.answers())
    assert len({answer[0] for answer in truth}) > 3

    # How threads meet is the machine's affair: go on until enough answers changed meanwhile.
    num_changing = 0
    for _ in range(MOST_ROUNDS):
        num_changing += concurrent_round(cache_config, truth)
        if num_changing > LEAST_CHANGING:
            return
    pytest.fail(f"{num_changing} answers changed while they were asked for, in {MOST_ROUNDS} runs")


def concurrent_round(cache_config: CacheConfig, truth: list[tuple[Match, ...]]) -> int:
    """Run the script among matching threads; return how many looks saw several right answers."""
    busy, start = Watch(cache_config), Barrier(NUM_MATCHERS + 1)
    seen: list[list[tuple[int, int, int, Match]]] = [[] for _ in range(NUM_MATCHERS)]
    threads = [Thread(target=busy.look, args=(start, rows)) for rows in seen]
    threads.append(Thread(target=busy.change, args=(start,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert busy.failures == []

    num_changing = 0
    for index, num_over, num_begun, match in (row for rows in seen for row in rows):
        possible = {answers[index] for answers in truth[num_over : num_begun + 1]}
        assert match in possible
        num_changing += len(possible) > 1
    assert busy.answers() == truth[-1]
    busy.cache.debug.check_integrity()
    return num_changing
