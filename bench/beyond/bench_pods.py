"""How do an answer, an event and memory grow with the number of pods of one index?

Every pod holds the prompt, and a chain of its own. There is no rival. A row's figure is an answer
about 64 candidates, spread over all pods; beside it stand an answer about all pods, CPU per event,
and what a pod takes of the index.
"""

import contextlib
import functools
from array import array
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Final

import numpy as np
from kvbraid.fleet import FleetIndex, Request

from bench.fleet.bench_score import prompt_of
from bench.fleet.ours import accounted_bytes, apply_all, new_index, pod_name
from bench.fleet.streams import Batch, Chain, batch, prefill_events, removed, stored
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of, repeated_us

CANDIDATES: Final = 64
SHARED: Final = 512  # Blocks of 16 tokens that every pod holds: the prompt.
OWN: Final = 128  # Blocks that one pod holds.
NUM_BATCHES: Final = 2_000

Figure = Callable[[FleetIndex, int], Sample]


@functools.cache
def shared_chain() -> Chain:
    """The chain that every pod holds."""
    return Chain.random(np.random.default_rng(1), SHARED)


@functools.cache
def held(num_pods: int) -> FleetIndex:
    """Return an index of so many pods; all rows of one process measure the same."""
    index, rng = new_index(num_pods=num_pods), np.random.default_rng(2)
    shared = batch(0, prefill_events(shared_chain(), 0, SHARED))
    for pod in range(num_pods):
        own = batch(pod, prefill_events(Chain.random(rng, OWN), 0, OWN))
        apply_all(index, [Batch(pod, shared.payload, shared.num_events, shared.num_stored), own])
    return index


def score(index: FleetIndex, pods: list[str] | None) -> Sample:
    """Check an answer once, then sample its time."""
    tokens = array("I", prompt_of(shared_chain()))
    request = Request(model="model", token_ids=tokens, pods=pods)
    rows = index.score(request).rows
    expected = len(pods) if pods else len(index.pods())
    assert [row.lower for row in rows] == [SHARED * 16] * expected
    return repeated_us(lambda: index.score(request))


def of_candidates(index: FleetIndex, num_pods: int) -> Sample:
    """An answer about 64 candidates."""
    step = num_pods // CANDIDATES
    return score(index, [pod_name(at * step) for at in range(CANDIDATES)])


def of_all(index: FleetIndex, _: int) -> Sample:
    """An answer about all pods."""
    return score(index, None)


def ingest(index: FleetIndex, num_pods: int) -> Sample:
    """CPU per event: blocks of one pod after another are stored, 8 a batch, and removed."""
    rng = np.random.default_rng(3)
    pods = cycle(rng.permutation(num_pods).tolist())

    def batches() -> Iterator[Batch]:
        for pod in (next(pods) for _ in range(NUM_BATCHES // 2)):
            chain = Chain.random(rng, 8)
            yield batch(pod, [stored(chain, at, at + 1) for at in range(8)])
            yield batch(pod, removed(chain, 0, 8))

    def sample() -> float:
        some = list(batches())
        return cpu_us_of(lambda: apply_all(index, some)) / (8 * len(some))

    return sample


def memory(index: FleetIndex, num_pods: int) -> Sample:
    """The bytes of the whole index for each pod."""
    return lambda: accounted_bytes(index) / num_pods


def side(figure: Figure, num_pods: int) -> Side:
    """Return one figure of an index of so many pods."""

    @contextlib.contextmanager
    def set_up() -> Iterator[Sample]:
        yield figure(held(num_pods), num_pods)

    return set_up


def row(num_pods: int) -> Row:
    """Return the row of so many pods."""
    return Row(
        name=f"pods_{num_pods}",
        question=f"{num_pods} pods of one index: 8 192 tokens over 64 candidates",
        unit="us",
        ours=side(of_candidates, num_pods),
        target=Target(),
        beside={
            "all pods, us": side(of_all, num_pods),
            "ingest, CPU us per event": side(ingest, num_pods),
            "bytes per pod": side(memory, num_pods),
        },
    )


ROWS = (row(100), row(1_000), row(10_000))
