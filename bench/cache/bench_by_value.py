"""What does retention by value cost an engine's steps while it keeps 100 000 checkpoints?

Both sides are ours: `ByValue()` with its simulated caches, and dense retention as the rival.
Prompts of 50 tokens that never come back fill a pool of a full group and a group of windows, so
that every prompt leaves a checkpoint and evicts another. `KVBRAID_BENCH_CHECKPOINTS=10_000`
makes it smaller.
`by_value_end_to_end` is the request of `end_to_end`: long prompts in a pool that is small for
them, once these have replayed the first recorded window. Before, they play up to sixteen
times as much: `KVBRAID_BENCH_FIRST=32` measures that. `by_value_star` is the slowest of 20 400
requests on prompts that share their beginning.
"""

import contextlib
import os
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from typing import TypeAlias

from kvbraid.cache import ByValue, CacheConfig, CacheManager, Dense, Need, Retention
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.cache.bench_loop import loop
from bench.cache.ours import Ours, OursByValue
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
FIRST_STRETCH = int(os.environ.get("KVBRAID_BENCH_FIRST", "256"))
"""Requests of 8 192 tokens after which simulated caches have replayed the first window."""
NUM_SIBLINGS = 20_000
SHARED_TOKENS = 320

Tokens: TypeAlias = "array[int]"
Figure = Callable[["Filled"], float]


class Filled:
    """A cache that keeps as many checkpoints as its pool has room for."""

    def __init__(
        self,
        retention: Retention,
        *,
        num_blocks: int = BLOCKS_PER_CHECKPOINT * NUM_CHECKPOINTS,
        num_prompts: int = NUM_CHECKPOINTS + NUM_CHECKPOINTS // 4,
        num_running: int = NUM_RUNNING,
    ) -> None:
        self.random = random.Random(1)
        self.cache = CacheManager(
            CacheConfig(
                topology=Topology(groups=GROUPS),
                num_blocks=num_blocks,
                retention=retention,
            )
        )
        for _ in range(num_prompts):
            self.prompt(self.text(PROMPT_TOKENS))
        tokens = [2_048 + number % 16 for number in range(num_running)]
        self.running = [self.begin(self.text(count))[0] for count in tokens]

    def text(self, num_tokens: int) -> Tokens:
        """Return tokens that nobody had before."""
        return array("I", self.random.randbytes(4 * num_tokens))

    def begin(self, tokens: Tokens) -> tuple[int, float]:
        """Compute a prompt; return the request, and the seconds that `allocate` took."""
        request = self.cache.add(tokens)
        match = self.cache.match(request)
        num_new = len(tokens) - match.num_tokens
        need = Need(request=request, num_new_tokens=num_new, match=match)
        begin = time.thread_time()
        assert self.cache.allocate([need]).num_fit == 1
        spent = time.thread_time() - begin
        self.cache.take_work()
        self.cache.start_step()
        return request, spent

    def prompt(self, tokens: Tokens) -> tuple[float, float]:
        """Compute a prompt and release it; return the seconds of `allocate`, and of all."""
        begin = time.thread_time()
        request, allocating = self.begin(tokens)
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
    prompts = (filled.text(PROMPT_TOKENS) for _ in range(NUM_PROMPTS))
    return 1e6 * statistics.median(filled.prompt(prompt)[0] for prompt in prompts)


def request_us(filled: Filled) -> float:
    """Return what a request takes, its hashes and simulated caches included."""
    prompts = (filled.text(PROMPT_TOKENS) for _ in range(NUM_PROMPTS))
    return 1e6 * statistics.fmean(filled.prompt(prompt)[1] for prompt in prompts)


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


@contextlib.contextmanager
def star() -> Iterator[Sample]:
    """Prompts that share their beginning; most go on, some part inside the beginning.

    Three caches that are the same serve each request, and the least of their times counts: a
    request always costs a cache the same, and what a shared machine adds is not asked for.
    """
    pool = 9 * NUM_SIBLINGS
    caches = [Filled(ByValue(), num_blocks=pool, num_prompts=0, num_running=0) for _ in range(3)]
    text, draw = caches[0].text, random.Random(2)

    def serve(tokens: Tokens) -> float:
        return min(filled.prompt(tokens)[1] for filled in caches)

    base = text(SHARED_TOKENS)
    siblings = [base + text(PROMPT_TOKENS) for _ in range(NUM_SIBLINGS)]
    for sibling in siblings:
        serve(sibling)

    def sample() -> float:
        slowest = 0.0
        for number in range(NUM_SIBLINGS):
            at = draw.randrange(NUM_SIBLINGS)
            siblings[at] += text(PROMPT_TOKENS)
            slowest = max(slowest, serve(siblings[at]))
            if number % PROMPT_TOKENS == 0:
                part = base[: draw.randrange(SHARED_TOKENS)]
                slowest = max(slowest, serve(part + text(PROMPT_TOKENS)))
        return 1e3 * slowest

    yield sample


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
        "a request of 50 tokens from its tokens to its release, simulated caches included",
        request_us,
    ),
    row("decode", "a decoding step of 256 requests", decode_us),
    Row(
        name="by_value_end_to_end",
        question="a request of 8 192 tokens, six groups, 26 000 blocks; the rival is dense",
        unit="us CPU",
        ours=loop(OursByValue, FIRST_STRETCH),
        rival=loop(Ours, FIRST_STRETCH),
        target=Target(ratio=1 / 1.3),
    ),
    Row(
        name="by_value_star",
        question=f"the slowest of {NUM_SIBLINGS:,} requests with one junction",
        unit="ms CPU",
        ours=star,
        target=Target(ours=2),
        samples=3,
    ),
)
