"""How long does it take to choose a pod, and to note that a prompt is on its way?

64 pods hold the prompt, in one full group and five windows, and 100 000 blocks a second come in
and go. Choosing is a score, a cost for each rank, a booking and a promise. The rival is the
`SelectionService` of the released `ai-dynamo-runtime`: it hashes, matches, chooses and reserves.
It knows one kind of group, and nothing comes in: that is the fastest it can be.
"""

import asyncio
import contextlib
import statistics
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import cycle, islice
from random import Random
from typing import Any, Final

import numpy as np
from kvbraid.fleet import FleetIndex, Request
from kvbraid.policy import Router, RouterOptions

from bench.fleet.bench_score import WINDOW, WINDOW_GROUP, prompt_of, to_all_pods
from bench.fleet.ours import FULL, apply_all, new_index, pod_name
from bench.fleet.streams import (
    BLOCK,
    NUM_PODS,
    PREFILL_BLOCKS,
    Batch,
    Chain,
    batch,
    prefill_events,
    removed,
    stored,
)
from bench.harness.measure import Row, Sample, Side, Target, repeated_us

TOKENS: Final = 8_192
BLOCKS_PER_S: Final = 100_000
DECISIONS: Final = 500
"""In one sample."""

Quantile = Callable[[list[float]], float]


def p99(times: list[float]) -> float:
    """Return the time that one in a hundred exceeds."""
    return statistics.quantiles(times, n=100)[98]


def held(chain: Chain) -> FleetIndex:
    """Return an index of 64 pods with six groups that hold the chain."""
    index = new_index(FULL, *[WINDOW_GROUP] * 5)
    events = prefill_events(chain, 0, len(chain))
    for group in range(1, 6):
        events += [
            stored(chain, i, i + 128, group=group, kind="sliding_window", window=WINDOW)
            for i in range(0, len(chain), 128)
        ]
    apply_all(index, to_all_pods(events))
    return index


def come_and_go(rng: np.random.Generator) -> list[Batch]:
    """Return batches that store 128 blocks on each pod and remove them again."""
    batches = []
    for pod in range(NUM_PODS):
        chain = Chain.random(rng, PREFILL_BLOCKS)
        batches.append(batch(pod, [stored(chain, 0, PREFILL_BLOCKS)]))
        batches.append(batch(pod, removed(chain, 0, PREFILL_BLOCKS)))
    return batches


@contextlib.contextmanager
def fed(index: FleetIndex) -> Iterator[None]:
    """Apply 100 000 blocks a second from another thread."""
    batches, over = cycle(come_and_go(np.random.default_rng(2))), threading.Event()

    def feed() -> None:
        begin, done = time.perf_counter(), 0
        while not over.wait(0.005):
            due = int((time.perf_counter() - begin) * BLOCKS_PER_S) - done
            for message in islice(batches, due // PREFILL_BLOCKS):
                index.apply(pod_name(message.pod), message.payload)
                done += PREFILL_BLOCKS

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ours(quantile: Quantile, *, with_seen: bool = False) -> Side:
    """A pick, timed; the first token and the end are reported between the picks.

    The service picks with what was ever seen of the prompt.
    """

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), TOKENS // BLOCK)
        index = held(chain)
        options, numbers = RouterOptions(with_seen=with_seen), iter(range(1 << 60))
        router = Router(index, options=options, chance=Random(1))
        request = Request(model="model", token_ids=array("I", prompt_of(chain)))
        assert router.pick("first", request, now=0.0).lower == TOKENS

        def pick() -> float:
            name, now = str(next(numbers)), time.perf_counter()
            begin = time.perf_counter_ns()
            router.pick(name, request, now=now)
            taken = time.perf_counter_ns() - begin
            router.first_token(name, now=now)
            router.end(name, now=now)
            return taken / 1_000

        def sample() -> float:
            with fed(index):
                return quantile([pick() for _ in range(DECISIONS)])

        yield sample

    return side


async def selection_service(workers: Mapping[int, str], *, threads: int = 1) -> Any:  # noqa: ANN401 - the wheel ships no types for it.
    """Return the rival, which knows these workers, each by its number, and their endpoints."""
    from dynamo.llm import SelectionService

    service = SelectionService(indexer_threads=threads)
    for worker, endpoint in workers.items():
        await service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": "model",
                "tenant_id": "default",
                "endpoint": endpoint,
                "block_size": BLOCK,
                "max_num_batched_tokens": 8_192,
                "data_parallel_start_rank": 0,
                "data_parallel_size": 1,
                "kv_events_endpoints": {0: "tcp://127.0.0.1:9"},  # Nobody publishes there.
            }
        )
    return service


def rival(quantile: Quantile) -> Side:
    """The rival's selection with its reservation, timed; it is freed between the selections."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), TOKENS // BLOCK)
        tokens, numbers = prompt_of(chain), iter(range(1 << 60))
        loop = asyncio.new_event_loop()
        workers = {pod: f"http://pod{pod}:8000" for pod in range(NUM_PODS)}
        service = loop.run_until_complete(selection_service(workers))

        async def select() -> float:
            name = f"s{next(numbers)}"
            query = {
                "model_name": "model",
                "tenant_id": "default",
                "selection_id": name,
                "token_ids": tokens,
            }
            begin = time.perf_counter_ns()
            await service.select_and_reserve(query)
            taken = time.perf_counter_ns() - begin
            await service.prefill_complete(name)
            await service.free_reservation(name)
            return taken / 1_000

        async def several(call: Callable[[], Awaitable[float]]) -> list[float]:
            return [await call() for _ in range(DECISIONS)]

        yield lambda: quantile(loop.run_until_complete(several(select)))
        loop.close()

    return side


@contextlib.contextmanager
def promises() -> Iterator[Sample]:
    """A promise and its withdrawal."""
    chain = Chain.random(np.random.default_rng(1), TOKENS // BLOCK)
    index, prompt = held(chain), Chain.random(np.random.default_rng(3), TOKENS // BLOCK)
    request = Request(model="model", token_ids=array("I", prompt_of(prompt)))
    index.promise(pod_name(0), request)
    columns = index.score(request).columns()
    assert columns.expected_soon[columns.ranks.index((pod_name(0), 0))] == TOKENS
    yield repeated_us(lambda: index.withdraw(index.promise(pod_name(0), request)))


ROWS = (
    Row(
        name="decide",
        question="choose among 64 pods for 8 192 tokens, six groups, 100 000 blocks/s coming in",
        unit="us",
        ours=ours(statistics.median),
        rival=rival(statistics.median),
        target=Target(ratio=5),
        beside={
            "ours_p99": ours(p99),
            "with_seen": ours(statistics.median, with_seen=True),
            "with_seen_p99": ours(p99, with_seen=True),
            "rival_p99": rival(p99),
        },
    ),
    Row(
        name="promise",
        question="promise a prompt of 8 192 tokens that no pod has, and withdraw it",
        unit="us",
        ours=promises,
        target=Target(ours=60),
    ),
)
