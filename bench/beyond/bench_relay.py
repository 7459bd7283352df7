"""How fast does a relay write the log of events, and how soon does a late replica have read it?

16 engines, publishers of another process, have 20 000 batches of about 4 KB in their buffers, each
of 44 blocks. A relay asks them for all and writes them to a stream, in a file, of a nats-server of
this machine: `relay` counts until the last one is acknowledged. `relay_catch_up` counts until an
index that reads the stream from its beginning knows all pods exactly, the engine being asked at
the end. The rival is nats-py alone: it publishes the same payloads with 256 under way, and reads
them with an ordered consumer, and knows neither engines nor an index. `KVBRAID_BENCH_BATCHES`
makes the rows smaller; `KVBRAID_NATS_SERVER` names another nats-server.
"""

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Final

from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet import FleetIndex
from kvbraid.fleet.index import IndexOptions
from kvbraid.ids import PodId, PodState
from kvbraid.service.config import FleetConfig
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.relay import RelaySubscriber
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shared.log_reader import LogReader, reading_log
from kvbraid.service.shared.threads import on_thread
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.harness.measure import Row, Sample, Side, Target

NUM_PODS: Final = 16
NUM_BATCHES: Final = int(os.environ.get("KVBRAID_BENCH_BATCHES", "20_000")) // NUM_PODS
"""Of each pod."""

ALL: Final = NUM_BATCHES * NUM_PODS
BLOCKS: Final = 44
UNDER_WAY: Final = 256
TOPOLOGY: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
LONG_S: Final = 300.0
FOUND: Final = os.environ.get("KVBRAID_NATS_SERVER") or shutil.which(
    "nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin"
)
_STREAMS: Final = count()
_OPEN: Final[list[Connection]] = []
"""What the engines live by: they end with it."""


def payload(pod: int, number: int) -> bytes:
    """44 blocks of a prompt of its own, in about 4 KB."""
    first = (pod * NUM_BATCHES + number) * BLOCKS + 1
    event = BlockStored(
        block_hashes=tuple(range(first << 20, (first + BLOCKS) << 20, 1 << 20)),
        parent_block_hash=None,
        token_ids=tuple((first * 16 + n * 7919) % 200_000 + 70_000 for n in range(16 * BLOCKS)),
        block_size=16,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return encode_batch([event])


def publish(parent: Connection) -> None:
    """Be all engines, until the parent ends."""
    at = "tcp://127.0.0.1:0"
    pods = [
        Publisher(at, replay_endpoint=at, bind=True, buffer_batches=ALL) for _ in range(NUM_PODS)
    ]
    for number in range(NUM_BATCHES):
        for pod, publisher in enumerate(pods):
            publisher.publish(payload(pod, number))
    parent.send([(each.endpoint, each.replay_endpoint) for each in pods])
    with contextlib.suppress(EOFError):
        parent.recv()


@cache
def engines() -> list[PodFeed]:
    """Start the engines, once."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=publish, args=(theirs,), daemon=True).start()
    _OPEN.append(ours)
    return [PodFeed(*at) for at in ours.recv()]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a nats-server with a folder of its own."""
    assert FOUND is not None
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [FOUND, "--addr", "127.0.0.1", "--port", str(port), "--jetstream"]
        process = subprocess.Popen([*command, "--store_dir", folder], stderr=subprocess.DEVNULL)
        try:
            wait(lambda: _listens(port))
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.perf_counter() + LONG_S
    while not is_so():
        assert time.perf_counter() < end
        time.sleep(0.005)


def new_table(url: str) -> SharedTable:
    """A stream that nobody has used."""
    name = f"S{next(_STREAMS)}"
    return SharedTable(url=url, fleet=name, log=name, log_bytes=1 << 30)


def add_pods(index: FleetIndex, feed: Subscriber) -> None:
    """Follow all engines."""
    for number, at in enumerate(engines()):
        pod = PodId(f"pod-{number}")
        index.register(pod, model="m", topology=TOPOLOGY)
        feed.add(pod, at)


def relayed(table: SharedTable) -> float:
    """Write everything to a stream; return the batches per second."""
    index = FleetIndex(IndexOptions())
    feed = RelaySubscriber(index, table, silence_s=LONG_S, hold_limit_bytes=1 << 30)
    with on_thread("relay", feed.writer.run, lambda: None):
        assert feed.writer.is_there(10)
        with feed:
            begin = time.perf_counter()
            add_pods(index, feed)
            wait(lambda: feed.writer.counts["stored"] == ALL)
            taken = time.perf_counter() - begin
    assert feed.writer.counts["refused"] == feed.writer.counts["late"] == 0
    return ALL / taken


def read(table: SharedTable) -> float:
    """Read a whole stream into an index; return the batches per second."""
    index = FleetIndex(IndexOptions())
    feed = Subscriber(index, silence_s=LONG_S)
    feed.log = log = LogReader(table)
    begin = time.perf_counter()
    with reading_log(FleetConfig(shared=table), log), feed:
        add_pods(index, feed)
        wait(
            lambda: all(
                (row.state, row.last_seq) == (PodState.EXACT, NUM_BATCHES - 1)
                and row.messages == NUM_BATCHES
                for row in feed.status()
            )
        )
        taken = time.perf_counter() - begin
    assert log.counts["read"] == ALL
    return ALL / taken


@contextlib.contextmanager
def writing() -> Iterator[Sample]:
    """Ours: engines, a relay, a stream."""
    engines()
    with server() as url:
        yield lambda: relayed(new_table(url))


@contextlib.contextmanager
def reading() -> Iterator[Sample]:
    """Ours: a stream, an index."""
    with server() as url:
        table = new_table(url)
        relayed(table)
        yield lambda: read(table)


async def _plain_write(url: str, name: str) -> float:
    from nats import connect

    client = await connect(url)
    stream = client.jetstream(publish_async_max_pending=UNDER_WAY)
    await stream.add_stream(name=name, subjects=[f"{name}.>"])
    payloads = [payload(pod, n) for n in range(NUM_BATCHES) for pod in range(NUM_PODS)]
    begin = time.perf_counter()
    for number, each in enumerate(payloads):
        headers = {"Nats-Msg-Id": f"{number}"}
        await stream.publish_async(f"{name}.{number % NUM_PODS}", each, headers=headers)
    await stream.publish_async_completed()
    taken = time.perf_counter() - begin
    assert (await stream.stream_info(name)).state.messages == ALL
    await client.close()
    return ALL / taken


async def _plain_read(url: str, name: str) -> float:
    from nats import connect
    from nats.aio.msg import Msg

    client = await connect(url)
    left, done = ALL, asyncio.Event()

    async def take(message: Msg) -> None:
        nonlocal left
        left -= bool(message.data)
        if not left:
            done.set()

    begin = time.perf_counter()
    await client.jetstream().subscribe(
        f"{name}.>", ordered_consumer=True, cb=take,
        pending_msgs_limit=0, pending_bytes_limit=0,
    )  # fmt: skip
    await asyncio.wait_for(done.wait(), LONG_S)
    taken = time.perf_counter() - begin
    await client.close()
    return ALL / taken


@contextlib.contextmanager
def plain_writing() -> Iterator[Sample]:
    """The rival writes."""
    with server() as url:
        yield lambda: asyncio.run(_plain_write(url, f"S{next(_STREAMS)}"))


@contextlib.contextmanager
def plain_reading() -> Iterator[Sample]:
    """The rival reads."""
    with server() as url:
        asyncio.run(_plain_write(url, "S"))
        yield lambda: asyncio.run(_plain_read(url, "S"))


def row(name: str, question: str, ours: Side, rival: Side, least: float) -> Row:
    """Return a row of batches per second."""
    return Row(
        name=name,
        question=question,
        unit="batches/s",
        ours=ours,
        rival=rival,
        target=Target(least=least),
        samples=3,
        larger_is_better=True,
        lacks="" if FOUND else "nats-server; Debian has it as nats-server",
    )


ROWS = (
    row(
        "relay",
        "how many batches of 4 KB does a relay have stored; the rival is nats-py alone",
        writing,
        plain_writing,
        4_000,
    ),
    row(
        "relay_catch_up",
        "how many batches of 4 KB does a late index take in; the rival is nats-py alone",
        reading,
        plain_reading,
        10_000,
    ),
)
