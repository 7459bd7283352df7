"""What does retention by value cost an engine's steps while it keeps 100 000 checkpoints?

Both sides are ours: `ByValue()` with its shadows, and dense retention as the rival. Prompts of 50
tokens that never come back fill a pool of a full group and a group of windows, so that every
prompt leaves a checkpoint and evicts another. `KVBRAID_BENCH_CHECKPOINTS=10_000` makes it smaller.
"""

import contextlib
import os
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator

from kvbraid.cache import ByValue, CacheConfig, CacheManager, Dense, Need, Retention
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.harness.measure import Row, Sample, Side, Target

NUM_CHECKPOINTS = int(os.environ.get("KVBRAID_BENCH_CHECKPOINTS", "100_000"))
PROMPT_TOKENS = 50
NUM_PROMPTS = 2_000
NUM_RUNNING = 256
STEPS = 16
GROUPS = (
    GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=32),
    GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
)
BLOCKS_PER_CHECKPOINT = 6

Figure = Callable[["Filled"], float]


class Filled:
    """A cache that keeps as many checkpoints as its pool has room for."""

    def __init__(self, retention: Retention) -> None:
        self.random = random.Random(1)
        self.cache = CacheManager(
            CacheConfig(
                topology=Topology(groups=GROUPS),
                num_blocks=BLOCKS_PER_CHECKPOINT * NUM_CHECKPOINTS,
                retention=retention,
            )
        )
        for _ in range(NUM_CHECKPOINTS + NUM_CHECKPOINTS // 4):
            self.prompt()
        tokens = [2_048 + number % 16 for number in range(NUM_RUNNING)]
        self.running = [self.begin(count)[0] for count in tokens]

    def begin(self, num_tokens: int) -> tuple[int, float]:
        """Compute a prompt; return the request, and the seconds that `allocate` took."""
        request = self.cache.add(array("I", self.random.randbytes(4 * num_tokens)))
        match = self.cache.match(request)
        need = Need(request=request, num_new_tokens=num_tokens, match=match)
        begin = time.thread_time()
        assert self.cache.allocate([need]).num_fit == 1
        spent = time.thread_time() - begin
        self.cache.take_work()
        self.cache.start_step()
        return request, spent

    def prompt(self) -> tuple[float, float]:
        """Compute a prompt and release it; return the seconds of `allocate`, and of all."""
        begin = time.thread_time()
        request, allocating = self.begin(PROMPT_TOKENS)
        self.cache.release([request])
        return allocating, time.thread_time() - begin

    def decode(self) -> float:
        """Decode with all running requests; return the seconds of a step."""
        begin = time.thread_time()
        for token in range(STEPS):
            self.cache.decode(self.running, [token] * NUM_RUNNING)
            self.cache.take_work()
            self.cache.start_step()
        return (time.thread_time() - begin) / STEPS


def allocate_us(filled: Filled) -> float:
    """Return what allocating for a prompt takes."""
    return 1e6 * statistics.median(filled.prompt()[0] for _ in range(NUM_PROMPTS))


def request_us(filled: Filled) -> float:
    """Return what a request takes, its hashes and shadows included."""
    return 1e6 * statistics.fmean(filled.prompt()[1] for _ in range(NUM_PROMPTS))


def decode_us(filled: Filled) -> float:
    """Return what a decoding step takes."""
    return 1e6 * filled.decode()


def side(retention: Retention, figure: Figure) -> Side:
    """One side: a filled cache that lives through all samples."""

    @contextlib.contextmanager
    def ready() -> Iterator[Sample]:
        filled = Filled(retention)
        yield lambda: figure(filled)

    return ready


def row(name: str, question: str, figure: Figure) -> Row:
    """The row may take 1.3 times as long as under dense retention."""
    return Row(
        name=f"by_value_{name}",
        question=f"{question} at {NUM_CHECKPOINTS:,} checkpoints; the rival is dense",
        unit="us CPU",
        ours=side(ByValue(), figure),
        rival=side(Dense(), figure),
        target=Target(ratio=1 / 1.3),
        samples=5,
    )


ROWS = (
    row("allocate", "allocate for a prompt of 50 tokens, each evicts as much", allocate_us),
    row(
        "request",
        "a request of 50 tokens from its tokens to its release, shadows included",
        request_us,
    ),
    row("decode", "a decoding step of 256 requests", decode_us),
)
