"""What do several requests in one call save, and from which length does a thread pay?

64 pods share each prompt, in blocks of 16 tokens. There is no rival: the rows compare ours with
ours. `score_async` counts the CPU time of the event loop's thread: a loop is held by nothing else.
"""

import asyncio
import contextlib
import statistics
import time
from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request

from bench.fleet.bench_score import prompt_of, to_all_pods
from bench.fleet.ours import apply_all, new_index
from bench.fleet.streams import NUM_PODS, Chain, prefill_events
from bench.harness.measure import Row, Sample, Side, repeated_cpu_us

NUM_REQUESTS: Final = 16
LENGTHS: Final = (1_024, 4_096, 16_384, 32_768, 49_152, 65_536, 131_072)
_CALLS: Final = 200
_LONGEST: Final = LENGTHS[-1]


def held(num_tokens: int, count: int) -> tuple[FleetIndex, list[Request]]:
    """Return an index whose pods hold prompts of so many tokens, and requests for them."""
    index, rng = new_index(), np.random.default_rng(1)
    requests = []
    for _ in range(count):
        chain = Chain.random(rng, num_tokens // 16)
        apply_all(index, to_all_pods(prefill_events(chain, 0, len(chain))))
        requests.append(Request(model="model", token_ids=array("I", prompt_of(chain))))
        rows = index.score(requests[-1]).rows
        assert [row.lower for row in rows] == [num_tokens] * NUM_PODS
    return index, requests


@contextlib.contextmanager
def together() -> Iterator[Sample]:
    """All requests in one call."""
    index, requests = held(1_024, NUM_REQUESTS)
    yield repeated_cpu_us(lambda: index.score_many(requests))


@contextlib.contextmanager
def one_by_one() -> Iterator[Sample]:
    """A call for each request."""
    index, requests = held(1_024, NUM_REQUESTS)
    yield repeated_cpu_us(lambda: [index.score(request) for request in requests])


async def _on_thread_us(index: FleetIndex, request: Request) -> float:
    """CPU time of the loop's own thread for one score on another thread."""
    begin = time.thread_time_ns()
    for _ in range(_CALLS):
        await asyncio.to_thread(index.score, request)
    return (time.thread_time_ns() - begin) / _CALLS / 1_000


def _at_once_us(index: FleetIndex, request: Request) -> float:
    begin = time.thread_time_ns()
    for _ in range(_CALLS):
        index.try_score(request)
    return (time.thread_time_ns() - begin) / _CALLS / 1_000


def at_once(num_tokens: int) -> Side:
    """How long a score at once holds the loop."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        index, (request,) = held(num_tokens, 1)
        yield lambda: _at_once_us(index, request)

    return side


def on_thread(num_tokens: int) -> Side:
    """How long a score on a thread holds the loop."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        index, (request,) = held(num_tokens, 1)
        yield lambda: asyncio.run(_on_thread_us(index, request))

    return side


@contextlib.contextmanager
def pays_from() -> Iterator[Sample]:
    """The first length at which the loop is held for less time by a thread; else the longest."""
    asked = [held(num_tokens, 1) for num_tokens in LENGTHS]

    def sample() -> float:
        for num_tokens, (index, (request,)) in zip(LENGTHS, asked, strict=True):
            inline = statistics.median(_at_once_us(index, request) for _ in range(3))
            handed = statistics.median(
                asyncio.run(_on_thread_us(index, request)) for _ in range(3)
            )
            if handed < inline:
                return num_tokens
        return _LONGEST

    yield sample


ROWS = (
    Row(
        name="score_many",
        question=f"{NUM_REQUESTS} requests of 1 024 tokens in one call; `rival`: a call for each",
        unit="us",
        ours=together,
        rival=one_by_one,
    ),
    Row(
        name="score_async",
        question="from how many tokens on does a thread hold the event loop for less time?",
        unit="tokens",
        ours=pays_from,
        beside={
            **{f"at_once_{n}_us": at_once(n) for n in LENGTHS},
            **{f"on_thread_{n}_us": on_thread(n) for n in (LENGTHS[0], _LONGEST)},
        },
    ),
)
