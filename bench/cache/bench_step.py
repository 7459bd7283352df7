"""How long do the steps of an engine take: a cold prompt, a decoding step, a finished request?

One full group and five windows of 1 024 tokens, as Gemma 3 has them; dense retention, no events.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.cache.ours import Ours
from bench.cache.pair import agree, drop_in, rival
from bench.cache.side import BLOCK, GEMMA3, AnyCache, Factory, prefill, random_tokens
from bench.harness.measure import Row, Sample, Side, Target

NUM_TOKENS = 8_192
NUM_PROMPTS = 16
PROMPT_BLOCKS = len(GEMMA3) * NUM_TOKENS // BLOCK

NUM_RUNNING = 256
RUNNING_TOKENS = 2_048
STEPS = 16
MOST_STEPS = 16 * STEPS
DECODE_BLOCKS = NUM_RUNNING * len(GEMMA3) * ((RUNNING_TOKENS + MOST_STEPS) // BLOCK + 2)


def prompt_times_us(cache: AnyCache) -> tuple[list[float], list[float]]:
    """Allocate and release cold prompts in a pool with room for all of them; return the times."""
    allocating, releasing = [], []
    for number in range(NUM_PROMPTS):
        request = cache.add(random_tokens(number, NUM_TOKENS))
        begin = time.thread_time_ns()
        cache.allocate(request, NUM_TOKENS)
        middle = time.thread_time_ns()
        cache.release(request)
        end = time.thread_time_ns()
        allocating.append((middle - begin) / 1_000)
        releasing.append((end - middle) / 1_000)
    cache.reset()
    return allocating, releasing


def new_for_prompts(new: Factory) -> AnyCache:
    """Make a cache that holds all prompts of a sample."""
    return new(GEMMA3, (NUM_PROMPTS + 1) * PROMPT_BLOCKS)


def prompts(new: Factory, *, releasing: bool) -> Side:
    """The median over the prompts of a sample."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        cache = new_for_prompts(new)
        yield lambda: statistics.median(prompt_times_us(cache)[releasing])

    return side


def prompts_leave(new: Factory) -> object:
    """Return the blocks that a cold prompt takes, leaves findable and gives back."""
    cache = new_for_prompts(new)
    free = [cache.num_free_blocks()]
    request = cache.add(random_tokens(1, NUM_TOKENS))
    cold = cache.match(request)
    cache.allocate(request, NUM_TOKENS)
    free.append(cache.num_free_blocks())
    cache.release(request)
    free.append(cache.num_free_blocks())
    return free, cold, cache.match(cache.add(random_tokens(1, NUM_TOKENS)))


def running(new: Factory) -> tuple[AnyCache, list[Any]]:
    """Prefill requests whose lengths are spread over a block, so each step fills some blocks."""
    cache = new(GEMMA3, DECODE_BLOCKS)
    requests = []
    for number in range(NUM_RUNNING):
        tokens = random_tokens(number, RUNNING_TOKENS + number % BLOCK)
        requests.append(prefill(cache, GEMMA3, tokens)[0])
    return cache, requests


def stepper(cache: AnyCache, requests: list[Any]) -> Callable[[], float]:
    """Return a function that runs 16 steps and returns the mean time of one."""
    tokens = list(range(1_000, 1_000 + NUM_RUNNING))

    def steps() -> float:
        begin = time.thread_time_ns()
        for _ in range(STEPS):
            cache.start_step()
            cache.decode(requests, tokens)
        return (time.thread_time_ns() - begin) / 1_000 / STEPS

    return steps


def decoding(new: Factory) -> Side:
    """The mean over 16 consecutive steps, in which each request fills one block."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        steps = stepper(*running(new))
        steps()  # The first step frees the blocks that the prompts' windows have passed.
        yield steps

    return side


def decoding_leaves(new: Factory) -> object:
    """Return the free blocks, and the blocks that one of the requests leaves findable."""
    cache, requests = running(new)
    stepper(cache, requests)()
    free = cache.num_free_blocks()
    tokens = [*random_tokens(5, RUNNING_TOKENS + 5), *[1_005] * STEPS]
    return free, cache.blocks(requests[5]), cache.match(cache.add(tokens))


PRELOAD = "bench.cache.rival"

ROWS = (
    Row(
        name="allocate_cold",
        question="allocate and commit a cold prompt of 8 192 tokens, 6 groups",
        unit="us CPU",
        ours=prompts(Ours, releasing=False),
        rival=prompts(rival, releasing=False),
        target=Target(ratio=20),
        check=agree(prompts_leave),
    ),
    Row(
        name="decode_step",
        question="a decoding step of 256 requests, appended tokens hashed, 6 groups",
        unit="us CPU",
        ours=decoding(Ours),
        rival=decoding(rival),
        target=Target(ratio=30),
        check=agree(decoding_leaves),
    ),
    Row(
        name="release",
        question="release a request of 8 192 tokens, 6 groups",
        unit="us CPU",
        ours=prompts(Ours, releasing=True),
        rival=prompts(rival, releasing=True),
        target=Target(ratio=20),
        check=agree(prompts_leave),
    ),
    Row(
        name="drop_in_prompt",
        question="vLLM's scheduler allocates and commits a cold prompt of 8 192 tokens, 6 groups",
        unit="us CPU",
        ours=prompts(drop_in, releasing=False),
        rival=prompts(rival, releasing=False),
        check=agree(prompts_leave, drop_in),
    ),
    Row(
        name="drop_in_decode",
        question="vLLM's scheduler asks for a decoding step of 256 requests, 6 groups",
        unit="us CPU",
        ours=decoding(drop_in),
        rival=decoding(rival),
        check=agree(decoding_leaves, drop_in),
    ),
)
