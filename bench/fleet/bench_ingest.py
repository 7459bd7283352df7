"""How much CPU does a block cost from MessagePack bytes to the index?

Ours is measured in process and through the running server. The rival is its standalone indexer,
which gets events over ZeroMQ; its CPU time comes from /proc. The rival's in-process tree, which
takes JSON, stands beside each row.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from bench.fleet.ours import Server, apply_all, new_index
from bench.fleet.publishers import Publishers, wait_applied
from bench.fleet.rival import Indexer, Tree, tree_events
from bench.fleet.streams import Batch, Mix, one_block_events, shared_chain
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of, cpu_us_of_process

Stream: TypeAlias = Callable[[], list[Batch]]


def prefill() -> list[Batch]:
    """524 288 blocks, 128 per event; all pods store the same chain."""
    return list(shared_chain(8_192))


def mixed() -> list[Batch]:
    """300 000 blocks of prefills and one-block decode events."""
    return list(Mix(300_000))


def decode() -> list[Batch]:
    """131 072 stores of one block, then as many removals."""
    return list(one_block_events(131_072))


def num_blocks(batches: list[Batch]) -> int:
    """The blocks that the stream stores or removes; the cost is divided by this number."""
    return sum(max(message.num_stored, message.num_events) for message in batches)


def in_process(stream: Stream) -> Side:
    """CPU per block of `FleetIndex.apply`, with a fresh index for each sample."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        batches = stream()

        def sample() -> float:
            index = new_index()
            return cpu_us_of(lambda: apply_all(index, batches)) / num_blocks(batches)

        yield sample

    return side


def through(service: type[Server] | type[Indexer], stream: Stream) -> Side:
    """CPU per block of a freshly started service, from publishing to the last event applied."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        batches = stream()

        def sample() -> float:
            with service.running() as running, Publishers.bound() as publishers:
                publishers.connect(running)
                begin = cpu_us_of_process(running.pid)
                publishers.publish(batches)
                wait_applied(running, service.expected(batches))
                return (cpu_us_of_process(running.pid) - begin) / num_blocks(batches)

        yield sample

    return side


def in_tree(stream: Stream) -> Side:
    """CPU per block of the rival's in-process tree, from JSON events made beforehand."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        batches = stream()
        events = list(tree_events(batches))

        def sample() -> float:
            tree = Tree()
            return cpu_us_of(lambda: tree.apply(events)) / num_blocks(batches)

        yield sample

    return side


def row(name: str, question: str, stream: Stream) -> Row:
    """Return the row of one stream in process."""
    return Row(
        name=name,
        question=question,
        unit="us CPU per block",
        ours=in_process(stream),
        rival=through(Indexer, stream),
        target=Target(ratio=5),
        samples=7,
        beside={"rival in process (RadixTree, JSON)": in_tree(stream)},
    )


ROWS = (
    row("ingest_prefill", "prefill-size events, 128 blocks each", prefill),
    row("ingest_mixed", "agents and chats: prefills and one-block events", mixed),
    row("ingest_decode", "one-block stores and removals, 16 a batch", decode),
    Row(
        name="serve_ingest_mixed",
        question="the mixed stream through the running server, ZeroMQ included",
        unit="us CPU per block",
        ours=through(Server, mixed),
        rival=through(Indexer, mixed),
        target=Target(ratio=3),
        samples=7,
    ),
)
