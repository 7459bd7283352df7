"""How many bytes does a resident (pod, group, block) cost, and is the memory given back?

Resident memory is read in a fresh process that does nothing but apply the stream (`absorb.py`),
and in the rival's service. Streams are made while they are consumed, so 10 M blocks fit anywhere.
`KVBRAID_BENCH_BLOCKS` makes the streams shorter for a quick look.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
from kvbraid.fleet import IndexOptions

from bench.fleet.absorb import frame
from bench.fleet.ours import accounted_bytes, apply_all, new_index
from bench.fleet.publishers import Publishers, wait_applied
from bench.fleet.rival import Indexer
from bench.fleet.streams import (
    NUM_PODS,
    Batch,
    Chain,
    Mix,
    batch,
    prefill_events,
    removed,
    shared_chain,
)
from bench.harness.measure import Row, Sample, Side, Target, counted, rss_bytes_of_process

NUM_BLOCKS = int(os.environ.get("KVBRAID_BENCH_BLOCKS", "10_000_000"))
CHURN_BLOCKS = NUM_BLOCKS // 10
CHURN_ROUNDS = 20
NUM_LIVE = 16

NUM_ALIKE = 16

Stream: TypeAlias = Callable[[], Iterable[Batch]]
Growth: TypeAlias = tuple[int, int]
"""Resident bytes, and the blocks that were stored."""


def shared() -> Iterable[Batch]:
    """Every pod holds the same chain."""
    return shared_chain(NUM_BLOCKS // NUM_PODS)


def alike(num_pods: int, *, own: bool) -> Iterator[Batch]:
    """Every pod of one seed holds the same chain; with `own`, after one that nobody else has."""
    rng = np.random.default_rng(7)
    for pod in range(num_pods if own else 0):
        chain = Chain.random(rng, 16 * (pod + 1))
        yield batch(pod, prefill_events(chain, 0, len(chain)))
    yield from shared_chain(NUM_BLOCKS // NUM_PODS, num_pods=num_pods)


def mixed() -> Iterable[Batch]:
    """Agents and chats over shared system prompts, in two groups; each pod has its own hashes."""
    return Mix(NUM_BLOCKS, num_windows=1, own_seeds=True)


def mixed_in_one(num_blocks: int = NUM_BLOCKS) -> Iterable[Batch]:
    """The same traffic in one group, on pods of one seed."""
    return Mix(num_blocks)


def churn_round(number: int) -> Iterator[Batch]:
    """Blocks never seen before; all of them are stored and then removed."""
    rng = np.random.default_rng((5, number))
    for start in range(0, CHURN_BLOCKS, 512):
        chain = Chain.random(rng, min(512, CHURN_BLOCKS - start))
        pod = start // 512 % NUM_PODS
        yield batch(pod, prefill_events(chain, 0, len(chain)))
        yield batch(pod, removed(chain, 0, len(chain)))


def live_blocks() -> Iterator[Batch]:
    """The blocks that stay."""
    yield batch(0, prefill_events(Chain.random(np.random.default_rng(6), NUM_LIVE), 0, NUM_LIVE))


def absorbed(stream: Stream, *, num_windows: int = 0) -> Growth:
    """Return the growth of a fresh process with our index."""
    command = [sys.executable, "-m", "bench.fleet.absorb", str(num_windows)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None  # Opened as a pipe above.
        assert process.stdout is not None
        num_stored = 0
        for message in stream():
            num_stored += message.num_stored
            process.stdin.write(frame(message))
        process.stdin.close()
        return json.loads(process.stdout.read())["grown_bytes"], num_stored


def rival_absorbed(stream: Stream) -> Growth:
    """Return the growth of the rival's service."""
    with Indexer.running() as running, Publishers.bound() as publishers:
        publishers.connect(running)
        begin = rss_bytes_of_process(running.pid)
        num_stored = publish_slowly(publishers, running, stream())
        return rss_bytes_of_process(running.pid) - begin, num_stored


def bytes_per_entry(growth: Callable[[Stream], Growth], stream: Stream) -> Side:
    """Resident bytes per stored block."""

    def count() -> float:
        grown, num_stored = growth(stream)
        return grown / num_stored

    return counted(count)


def bytes_of_further(growth: Callable[[Stream], Growth], *, own: bool = False) -> Side:
    """Resident bytes of a block that another pod holds: those of 16 pods without those of one."""

    def count() -> float:
        grown, num_stored = growth(lambda: alike(NUM_ALIKE, own=own))
        of_one, num_of_one = growth(lambda: alike(1, own=own))
        return (grown - of_one) / (num_stored - num_of_one)

    return counted(count)


def publish_slowly(publishers: Publishers, service: Indexer, stream: Iterable[Batch]) -> int:
    """Publish in parts, each applied before the next is made; return the blocks stored."""
    base = service.num_applied()
    num_stored = num_events = 0
    batches = iter(stream)
    while part := list(itertools.islice(batches, 4_096)):
        publishers.publish(part)
        num_stored += sum(message.num_stored for message in part)
        num_events += sum(message.num_events for message in part)
        wait_applied(service, base + num_events)
    return num_stored


@contextlib.contextmanager
def churn() -> Iterator[Sample]:
    """The accounted bytes after the last round, divided by those after the first.

    What was seen before is remembered up to a limit, which the first round reaches.
    """

    def sample() -> float:
        index = new_index(options=IndexOptions(seen_limit_bytes=1 << 20))
        apply_all(index, live_blocks())
        sizes = []
        for number in range(CHURN_ROUNDS):
            apply_all(index, churn_round(number))
            index.check_integrity()
            sizes.append(accounted_bytes(index))
        return sizes[-1] / sizes[0]

    yield sample


@contextlib.contextmanager
def rival_churn() -> Iterator[Sample]:
    """The resident bytes of the rival's service after the last round, divided by those after the
    first."""

    def sample() -> float:
        with Indexer.running() as running, Publishers.bound() as publishers:
            publishers.connect(running)
            publish_slowly(publishers, running, live_blocks())
            sizes = []
            for number in range(CHURN_ROUNDS):
                publish_slowly(publishers, running, churn_round(number))
                sizes.append(rss_bytes_of_process(running.pid))
            return sizes[-1] / sizes[0]

    yield sample


ROWS = (
    Row(
        name="memory_shared",
        question="64 pods hold one chain",
        unit="bytes RSS per (pod, group, block)",
        ours=bytes_per_entry(absorbed, shared),
        rival=bytes_per_entry(rival_absorbed, shared),
        target=Target(ours=48),
        samples=1,
    ),
    Row(
        name="memory_further",
        question="16 pods of one seed hold one chain: a block that another pod holds",
        unit="bytes RSS per (pod, group, block)",
        ours=bytes_of_further(absorbed),
        rival=bytes_of_further(rival_absorbed),
        target=Target(ours=8),
        samples=1,
        beside={"after other traffic": bytes_of_further(absorbed, own=True)},
    ),
    Row(
        name="memory_mixed",
        question="64 pods with seeds of their own and two groups, agents and chats",
        unit="bytes RSS per (pod, group, block)",
        ours=bytes_per_entry(partial(absorbed, num_windows=1), mixed),
        # It takes in one group, and finds no parents where pods have seeds of their own.
        rival=bytes_per_entry(rival_absorbed, partial(mixed_in_one, NUM_BLOCKS // 2)),
        target=Target(ours=40),
        samples=1,
    ),
    Row(
        name="memory_mixed_in_one",
        question="64 pods of one seed and one group, agents and chats",
        unit="bytes RSS per (pod, group, block)",
        ours=bytes_per_entry(absorbed, mixed_in_one),
        rival=bytes_per_entry(rival_absorbed, mixed_in_one),
        target=Target(ours=40),
        samples=1,
    ),
    Row(
        name="memory_churn",
        question="stored and removed 20 times, 16 live: bytes after round 20 / after round 1",
        unit="x",
        ours=churn,
        rival=rival_churn,
        target=Target(ours=1.05),
        samples=1,
    ),
)
