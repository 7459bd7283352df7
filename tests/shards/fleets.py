"""Shards in this process, each a real server on a thread and a port of its own, and a front."""

import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from typing import Final

import uvicorn
from kvbraid.engine import EngineProfile
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.server import _uvicorn_config
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedTable
from kvbraid.service.sharding import Shard, shard_of
from kvbraid.service.shards.front import Front
from kvbraid.service.shards.messages import ShardQuestion
from kvbraid.service.shards.no_feed import NoFeed
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.service.fakes import FakeFeed
from tests.service.serving import until

FULL: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
OF: Final = 3


def stored_prompt(tokens: Sequence[int]) -> bytes:
    """An event of an engine that has stored the whole blocks of a prompt."""
    hashes, before = [], b""
    for end in range(16, len(tokens) + 1, 16):
        before = blake2b(before + repr(list(tokens[end - 16 : end])).encode()).digest()
        hashes.append(int.from_bytes(before[:8], "big"))
    event = BlockStored(
        block_hashes=tuple(hashes), parent_block_hash=None,
        token_ids=tuple(tokens[: 16 * len(hashes)]), block_size=16,
        group_idx=0, kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    return encode_batch([event] if hashes else [])


class ShardServer:
    """One shard, which can be stopped, started again, and made to hang."""

    def __init__(self, number: int, **access: object) -> None:
        self.shard = Shard(number, OF)
        self.access = Access(**access)  # type: ignore[arg-type]
        self._listen(0)
        self.port = self._socket.getsockname()[1]
        self.new_index()

    def new_index(self) -> None:
        """Begin anew, as a process does."""
        self.index = FleetIndex()
        self.service = Service(self.index, FakeFeed())
        self.service.shard = self.shard

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._socket.fileno() < 0:
            self._listen(self.port)
        app = Application(self.service, access=self.access)
        self._server = uvicorn.Server(_uvicorn_config(app, 1))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        assert until(lambda: self._server.started, bool)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let no question be answered for a block."""
        goes_on, answer = threading.Event(), self.service.questions.answer

        def waits(question: ShardQuestion) -> bytes:
            goes_on.wait(20)
            return answer(question)

        with answering(self, waits):
            try:
                yield
            finally:
                goes_on.set()

    def _listen(self, port: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))


@contextmanager
def answering(server: ShardServer, answer: Callable[[ShardQuestion], bytes]) -> Iterator[None]:
    """Let a shard answer otherwise for a block."""
    server.service.questions.answer = answer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del server.service.questions.answer


class Fleet:
    """Three shards, their front, and one index that knows all of their pods."""

    def __init__(self, servers: list[ShardServer], front: Front) -> None:
        self.servers = {server.shard.number: server for server in servers}
        self.front = front
        self.whole = FleetIndex()
        self.service = Service(front, NoFeed(front.close), picking=Picking(front))

    def register(
        self,
        pod: str,
        topology: Topology = FULL,
        engine: EngineProfile = EngineProfile(),  # noqa: B008 - frozen
        *,
        model: str = "m",
        dp_size: int = 1,
    ) -> None:
        for index in (self.whole, self.shard(pod).index):
            index.register(
                PodId(pod), model=model, topology=topology, engine=engine, dp_size=dp_size
            )
        config = PodConfig(model=model, endpoint="tcp://h:1", dp_size=dp_size)
        self.service.put(PodId(pod), config)
        self.shard(pod).service._set_pods({**self.shard(pod).service.pods, PodId(pod): config})

    def apply(self, pod: str, payload: bytes) -> None:
        for index in (self.whole, self.shard(pod).index):
            index.apply(PodId(pod), payload)

    def shard(self, pod: str) -> ShardServer:
        return self.servers[shard_of(PodId(pod), OF)]

    def pods_of(self, number: int) -> set[str]:
        return {pod for pod in self.service.pods if shard_of(pod, OF) == number}

    def is_connected(self) -> bool:
        """Whether every shard can be asked; one may be said to lack ranks."""
        told = self.front.problem
        return not re.search("not connected|is down", told)


@contextmanager
def fleet(*, key: str | None = None, answer_s: float = 5.0, **access: object) -> Iterator[Fleet]:
    """Run three shards and a front for a block; the front waits for them unless told otherwise."""
    with ExitStack() as stack:
        servers = [ShardServer(number, **access) for number in range(1, OF + 1)]
        for server in servers:
            server.start()
            stack.callback(server.stop)
        table = SharedTable(shards=[server.url for server in servers], shard_answer_s=answer_s)
        front = Front(table, key)
        stack.callback(front.close)
        made = Fleet(servers, front)
        made.register("some-pod")
        until(made.is_connected, bool)
        yield made
