"""How long does a decision take inside Ray Serve's `choose_replicas`?

64 replicas hold the prompt, in one full group and five windows, and 100 000 blocks a second come
in and go, as in `router/bench_decide.py`. Ours is all that `KvbraidRouter.choose_replicas` does
with a call: it reads the prompt's ids, chooses, books, promises, and orders the replicas. The
rival is what `KVAwareRouter` of Ray Serve LLM 2.60 does: it names a worker for each replica, and
asks Dynamo's `SelectionService`, into which nothing comes. Neither has Ray around it.
"""

import asyncio
import contextlib
import statistics
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.choosing import HandleCall, ReplicaChooser
from kvbraid.integrations.replicas.options import read_options
from kvbraid.service.config import Followed

from bench.fleet.bench_score import prompt_of
from bench.fleet.ours import pod_name
from bench.fleet.streams import BLOCK, NUM_PODS, Chain
from bench.harness.measure import Row, Sample, Side, Target
from bench.router.bench_decide import (
    DECISIONS,
    TOKENS,
    Quantile,
    fed,
    held,
    p99,
    selection_service,
)

MODEL: Final = "model"


class Name(NamedTuple):
    """The name of a replica, as Ray has it."""

    unique_id: str


class Replica(NamedTuple):
    """A replica, as far as both sides look at it."""

    replica_id: Name


REPLICAS: Final = [Replica(Name(pod_name(pod))) for pod in range(NUM_PODS)]


class NoFeed:
    """Events come from the benchmark itself."""

    def add(self, pod: PodId, feed: Followed, /) -> None:
        """Follow nobody."""

    def remove(self, pod: PodId, /) -> None:
        """Follow nobody."""


def ours(quantile: Quantile, *, as_list: bool = False) -> Side:
    """A choice, timed; Ray tells of its end between the choices."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), TOKENS // BLOCK)
        index, tokens = held(chain), prompt_of(chain)
        chooser: ReplicaChooser[Replica] = ReplicaChooser(
            read_options({}, deployment=MODEL), index, NoFeed(), chance=Random(1)
        )
        chooser.replicas.pods = frozenset(map(pod_name, range(NUM_PODS)))
        ids: Sequence[int] = tokens if as_list else array("I", tokens)
        numbers = iter(range(1 << 60))

        async def choose() -> float:
            call_id = str(next(numbers))
            begin = time.perf_counter_ns()
            call = HandleCall(call_id, (), {"request_token_ids": ids})
            ranks, decision = await chooser.rank(call, REPLICAS)
            taken = time.perf_counter_ns() - begin
            assert decision is not None
            assert decision.lower == TOKENS
            chooser.sent(call)
            chooser.completed(call_id, PodId(ranks[0][0].replica_id.unique_id))
            return taken / 1_000

        async def several() -> list[float]:
            return [await choose() for _ in range(DECISIONS)]

        def sample() -> float:
            with fed(index):
                return quantile(asyncio.run(several()))

        yield sample

    return side


def worker_id(name: str) -> int:
    """Return the worker that the rival makes of a replica's name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def rival(quantile: Quantile) -> Side:
    """The rival's choice, timed; its reservation is freed between the choices."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), TOKENS // BLOCK)
        tokens, numbers = prompt_of(chain), iter(range(1 << 60))
        loop = asyncio.new_event_loop()
        names = [each.replica_id.unique_id for each in REPLICAS]
        endpoints = {worker_id(name): f"ray://{name}" for name in names}
        # With as many threads as Ray Serve LLM gives it.
        service = loop.run_until_complete(selection_service(endpoints, threads=4))

        async def choose() -> float:
            name = f"s{next(numbers)}"
            begin = time.perf_counter_ns()
            workers = {worker_id(each.replica_id.unique_id): each for each in REPLICAS}
            chosen: Mapping[str, Any] = await service.select_and_reserve(
                {
                    "model_name": MODEL,
                    "tenant_id": "default",
                    "selection_id": name,
                    "token_ids": tokens,
                    "allowed_worker_ids": list(workers),
                }
            )
            assert [[workers[chosen["worker_id"]]]]
            taken = time.perf_counter_ns() - begin
            await service.prefill_complete(name)
            await service.free_reservation(name)
            return taken / 1_000

        async def several() -> list[float]:
            return [await choose() for _ in range(DECISIONS)]

        yield lambda: quantile(loop.run_until_complete(several()))
        loop.close()

    return side


ROWS = (
    Row(
        name="ray_choose",
        question="choose among 64 replicas for a call of 8 192 ids, as Ray Serve asks: 150 us",
        unit="us",
        ours=ours(statistics.median),
        rival=rival(statistics.median),
        target=Target(ratio=4),
        beside={
            "ours_p99": ours(p99),
            "ids_in_a_list": ours(statistics.median, as_list=True),
            "rival_p99": rival(p99),
        },
    ),
)
