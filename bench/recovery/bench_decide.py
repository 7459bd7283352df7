"""How long does a decision take, from the report to the finished plan?

256 requests of 32 768 tokens have loaded their whole prompts but for the last block, which is in
flight, and blocks of 16 tokens fail all over them. A sample starts from the manager's live tables
and makes its input itself: one `Run` per request, and the report. `half` shares the first half of
all prompts. There is no rival.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import median, quantiles

from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import RecoveryPlan, Run, decide
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.harness.measure import Row, Sample, Side, Target

NUM_REQUESTS, NUM_TOKENS, BLOCK, NUM_FAILED = 256, 32_768, 16, 1_000
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=BLOCK)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=1_024)
GROUPS = {"full": (FULL,) * 6, "windows": (FULL, *(WINDOW,) * 5)}


class Load:
    """A cache in which every request has loaded its prompt, and the blocks that failed."""

    def __init__(self, groups: tuple[GroupSpec, ...], num_shared: int, num_failed: int) -> None:
        num_blocks = NUM_REQUESTS * len(groups) * (NUM_TOKENS // BLOCK + 1) + 1
        config = CacheConfig(
            topology=Topology(groups=groups), num_blocks=num_blocks, hash_seed="0"
        )
        self.cache = CacheManager(config)
        self.requests = [self.start(number, num_shared) for number in range(NUM_REQUESTS)]
        random = Random(1)
        tables = [table for request, _ in self.requests for table in self.cache.blocks(request)]
        held = [[b for b in table[: NUM_TOKENS // BLOCK - 1] if b] for table in tables]
        self.failed: list[BlockId] = []
        while len(set(self.failed)) < num_failed:
            self.failed.append(random.choice(random.choice(held)))

    def start(self, number: int, num_shared: int) -> tuple[int, int]:
        """Begin a request that hits what is shared, loads the rest, and computes a block.

        Whoever hits what the first request loads depends on that load.
        """
        own = range(number * NUM_TOKENS + num_shared, (number + 1) * NUM_TOKENS)
        request = self.cache.add([*range(num_shared), *own])
        hit = self.cache.match(request).num_tokens
        need = Need(
            request=request,
            num_new_tokens=BLOCK,
            num_hit_tokens=hit,
            num_external_tokens=NUM_TOKENS - BLOCK - hit,
        )
        assert self.cache.allocate([need]).num_fit == 1
        return request, hit

    def decide(self) -> RecoveryPlan:
        """Make the input and the plan."""
        runs = [
            Run(
                request=request,
                num_tokens=NUM_TOKENS,
                num_prompt_tokens=NUM_TOKENS,
                num_known_tokens=NUM_TOKENS,
                num_local_tokens=hit,
                num_loaded_tokens=NUM_TOKENS - BLOCK - hit,
                num_processed_tokens=NUM_TOKENS - BLOCK,
                num_computed_tokens=NUM_TOKENS,
            )
            for request, hit in self.requests
        ]
        return decide(self.cache, runs, Failures(blocks=self.failed))

    def check(self) -> None:
        """Make sure that every failed block counts, and that every request has a plan."""
        plan = self.decide()
        assert not plan.ignored, plan.ignored
        assert set(self.failed) <= set(plan.tainted)
        assert len(plan.requests) >= min(NUM_REQUESTS, len(set(self.failed))) // 2


def samples(
    kind: str, num_shared: int, num_failed: int, figure: Callable[[list[float]], float]
) -> Side:
    """Time decisions for half a second, and return a figure of all times in milliseconds."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        load = Load(GROUPS[kind], num_shared, num_failed)
        load.check()

        def sample() -> float:
            times: list[float] = []
            deadline = time.perf_counter() + 0.5
            while len(times) < 2 or time.perf_counter() < deadline:
                begin = time.perf_counter_ns()
                load.decide()
                times.append((time.perf_counter_ns() - begin) / 1e6)
            return figure(times)

        yield sample

    return side


def p99(times: list[float]) -> float:
    """Return the time that one decision in a hundred exceeds."""
    return quantiles(times, n=100)[-1]


def row(name: str, kind: str, num_shared: int, question: str) -> Row:
    """Return a row with the same target as all others."""
    return Row(
        name=name,
        question=f"{question}: report to plan, 256 requests of 32 k tokens, 1 000 failed blocks",
        unit="ms",
        ours=samples(kind, num_shared, NUM_FAILED, median),
        # Loads fail rarely: 5 ms took 660 lines more (docs/decisions/0009-twenty-ms-to-decide.md).
        target=Target(ours=20),
        beside={
            "p99": samples(kind, num_shared, NUM_FAILED, p99),
            "one_failed_block": samples(kind, num_shared, 1, median),
        },
    )


HALF = NUM_TOKENS // 2

ROWS = (
    row("decide", "full", 0, "6 full groups, nothing shared"),
    row("decide_half_shared", "full", HALF, "6 full groups, the first half shared by all"),
    row("decide_windows", "windows", 0, "1 full group and 5 windows, nothing shared"),
    row("decide_windows_half_shared", "windows", HALF, "1 full group and 5 windows, half shared"),
)
