"""A relay and replicas around a log of events, with engines that are simulated."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from kvbraid.events.digest import RANDOM, Digests
from kvbraid.events.sequence import Settled
from kvbraid.fleet import FleetIndex, Request
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
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import ENGINE, PRESETS
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload
from nats import connect

from tests.service.engines import LOOPBACK, open_publisher
from tests.service.serving import until
from tests.shared.replicas import Nats, nats

STREAM: Final = "EVENTS"
SECRET: Final = bytes(range(32))


def table(server: Nats, **options: int) -> SharedTable:
    return SharedTable(url=server.url, log=STREAM, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def jetstream(folder: Path) -> Iterator[Nats]:
    """A server whose streams are in a folder."""
    with nats("--jetstream", "--store_dir", str(folder)) as server:
        yield server


class Engines:
    """One simulated engine per preset, each a pod of its model's name."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self.models = models
        self.publishers: dict[str, Publisher] = {
            model: open_publisher(replay_endpoint=LOOPBACK) for model in models
        }
        self.engines = {
            model: SimulatedEngine(PRESETS[model], self.publishers[model]) for model in models
        }
        self.requests: list[WorkRequest] = []
        self._work = shared_prefix_workload(models, seed=1)

    def serve(self, number: int) -> None:
        """Let the engines serve some requests."""
        for _ in range(number):
            work = next(self._work)
            self.requests.append(work)
            engine = self.engines[work.model]
            engine.serve(EngineRequest(prompt=list(work.prompt), outputs=list(work.outputs)))

    def restart(self, model: str) -> None:
        """Let a new, empty engine have the addresses of one."""
        old = self.publishers[model]
        old.close()
        new = self.publishers[model] = open_publisher(
            old.endpoint, replay_endpoint=old.replay_endpoint
        )
        self.engines[model] = SimulatedEngine(PRESETS[model], new)

    def feed(self, model: str, *, replay: bool = True) -> PodFeed:
        publisher = self.publishers[model]
        return PodFeed(publisher.endpoint, publisher.replay_endpoint if replay else None)

    def seqs(self) -> dict[str, int]:
        return {model: each._next_seq - 1 for model, each in self.publishers.items()}

    def close(self) -> None:
        for publisher in self.publishers.values():
            publisher.close()


@contextlib.contextmanager
def engines(models: tuple[str, ...] = tuple(PRESETS)) -> Iterator[Engines]:
    made = Engines(models)
    try:
        yield made
    finally:
        made.close()


class Reading:
    """A replica that follows pods: through the log, or through their sockets."""

    def __init__(self, feed: Subscriber, index: FleetIndex, log: LogReader | None = None) -> None:
        self.feed, self.index, self.log = feed, index, log

    def add(
        self,
        fleet: Engines,
        *,
        replay: bool = True,
        saved: tuple[bytes, Sequence[Settled]] = (b"", ()),
    ) -> None:
        """Follow the pods; if there is one, from what was saved of it on."""
        for model in fleet.models:
            self.index.register(
                PodId(model), model=model, topology=PRESETS[model].topology, engine=ENGINE
            )
            if saved[0]:
                self.index.load(PodId(model), saved[0])
            self.feed.add(PodId(model), fleet.feed(model, replay=replay), saved[1])

    def rows(self) -> dict[str, tuple[PodState, int | None]]:
        return {row.pod: (row.state, row.last_seq) for row in self.feed.status()}

    def states(self) -> set[PodState]:
        return {row.state for row in self.feed.status()}

    def knows(self, fleet: Engines, state: PodState = PodState.EXACT) -> bool:
        """Whether all that was published has come, and was taken so."""
        wanted = {pod: (state, seq if seq >= 0 else None) for pod, seq in fleet.seqs().items()}
        return until(self.rows, lambda rows: rows == wanted and not self._is_amid) == wanted

    @property
    def _is_amid(self) -> bool:
        return any(not self.feed.at_rest(row.pod, lambda _: None) for row in self.feed.status())

    def answers(self, fleet: Engines) -> list[list[tuple[object, ...]]]:
        """What it says of every request that was served."""
        return [
            [(row.lower, row.upper, row.expected, row.exactness) for row in scores.rows]
            for work in fleet.requests
            for scores in [self.index.score(Request(model=work.model, token_ids=work.prompt))]
        ]


@contextlib.contextmanager
def reading(shared: SharedTable | None = None, digests: Digests = RANDOM) -> Iterator[Reading]:
    """A replica with no pods yet; with a table it reads the log."""
    index = FleetIndex(IndexOptions(secret=SECRET))
    feed = Subscriber(index)
    feed.digests = digests
    feed.log = log = None if shared is None else LogReader(shared)
    config = FleetConfig(shared=shared or SharedTable())
    with reading_log(config, log), feed:
        yield Reading(feed, index, log)


class Relay:
    """A relay of some engines."""

    def __init__(self, feed: RelaySubscriber) -> None:
        self.feed, self.counts = feed, feed.writer.counts

    def has(self, seqs: Mapping[str, int]) -> bool:
        """Whether the log has everything up to these numbers."""

        def last() -> dict[str, int]:
            known = self.feed.writer._ranks
            return {pod: r.last.seq for (pod, _), r in known.items() if r.last and r.is_known}

        wanted = {pod: seq for pod, seq in seqs.items() if seq >= 0}
        return until(last, lambda found: found == wanted) == wanted


@contextlib.contextmanager
def relaying(shared: SharedTable, fleet: Engines) -> Iterator[Relay]:
    """A relay of all of the engines."""
    index = FleetIndex(IndexOptions())
    feed = RelaySubscriber(index, shared, silence_s=0.5)
    with on_thread("relay", feed.writer.run, lambda: None):
        feed.writer.is_there(1.0)
        with feed:
            for model in fleet.models:
                index.register(
                    PodId(model), model=model, topology=PRESETS[model].topology, engine=ENGINE
                )
                feed.add(PodId(model), fleet.feed(model))
            yield Relay(feed)


def tell(
    server: Nats, subject: str, request: object, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Send a message as anybody could, and return what is answered."""

    async def send() -> dict[str, Any]:
        client = await connect(server.url)
        try:
            body = request if isinstance(request, bytes) else msgspec.json.encode(request)
            answer = await client.request(subject, body, timeout=2, headers=headers)
            return msgspec.json.decode(answer.data, type=dict[str, Any])
        finally:
            await client.close()

    return asyncio.run(send())


def stored(server: Nats) -> dict[str, Any]:
    """The state of the stream."""
    return dict(tell(server, f"$JS.API.STREAM.INFO.{STREAM}", {})["state"])
