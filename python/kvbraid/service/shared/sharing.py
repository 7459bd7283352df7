"""What replicas share, on a thread of its own: no decision waits for it, and no answer needs it.

Invariant: what goes wrong here is shown and counted, and changes nothing but what is known of
other replicas, which ends by age.
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.extras import require
from kvbraid.policy import Decision
from kvbraid.service.config import FleetConfig
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedState, SharedTable
from kvbraid.service.shared.hearing import Hearing, ReplicaMessage
from kvbraid.service.shared.messages import LoadMessage, SentRequest, Speaker
from kvbraid.service.shared.ports import MessageServer
from kvbraid.service.shared.threads import on_thread

MOST_TO_TELL: Final = 1024
"""Requests that wait to be told of; then the oldest are left out."""


class Sharing:
    """What one replica says and hears. `run` works on the loop of its thread."""

    def __init__(self, table: SharedTable, picking: Picking, server: MessageServer) -> None:
        self._every_s = table.every_s
        self._picking = picking
        self._server = server
        run, self._prefix = secrets.token_hex(8), f"kvbraid.{table.fleet}"
        self._name = table.name
        self._speaker = Speaker(run)
        self._hearing = Hearing(self._prefix, table.name, run, self._take)
        self._to_tell: deque[SentRequest] = deque(maxlen=MOST_TO_TELL)
        self._is_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.state = SharedState(table.name, server, self._hearing.counts)

    async def run(self) -> None:
        """Speak and hear until cancelled."""
        self._picking.on_choice = self._note
        try:
            await asyncio.gather(
                self._server.run(self._subscribe), self._say_loads(), self._tell_requests()
            )
        finally:
            self._picking.on_choice = None

    async def _subscribe(self) -> None:
        await self._server.subscribe(f"{self._prefix}.*.*", self._hear)

    def _hear(self, subject: str, payload: bytes) -> None:
        self._hearing.hear(subject, payload, time.monotonic())

    def _take(self, process: str, message: ReplicaMessage, now: float) -> bool:
        del now
        if isinstance(message, LoadMessage):
            return self._picking.merge(process, message.loads)
        try:
            return self._picking.promise(*message.sent)
        except KvbraidError:  # No pod of ours serves the model, or it cannot be scored here.
            return False

    async def _say_loads(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self.state.twice = self._hearing.twice(time.monotonic())
            if not self._server.problem:
                load = self._speaker.load(self._picking.booked(), time.monotonic())
                await self._server.publish(f"{self._prefix}.load.{self._name}", load)

    def _note(self, decision: Decision, lasts_s: float) -> None:
        """Take a choice from any thread; never waits."""
        if self._server.problem or not len(decision.view.request.token_ids):
            return
        self._to_tell.append(SentRequest(decision.rank, decision.view.request, lasts_s))
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._is_asked.set)

    async def _tell_requests(self) -> None:
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            while self._to_tell:
                payload = self._speaker.sent(self._to_tell.popleft(), time.monotonic())
                if payload is not None:
                    await self._server.publish(f"{self._prefix}.sent.{self._name}", payload)


@contextlib.contextmanager
def sharing(config: FleetConfig, service: Service) -> Iterator[None]:
    """Share what a configuration says, on a thread of its own.

    Raises:
        InvalidValueError: There is a URL, and the extra `nats` is not installed.
    """
    if config.shared.url is None:
        yield
        return
    try:
        require("nats", "shared.url")
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None
    from kvbraid.service.shared.nats_server import NatsServer  # Only who shares needs it.

    server = NatsServer(config.shared)

    def share() -> Coroutine[Any, Any, None]:
        shared = Sharing(config.shared, service.picking, server)
        service.shared = shared.state
        return shared.run()

    def failed() -> None:
        server.problem = "what is shared has failed, as the log says"

    with on_thread("kvbraid-shared", share, failed):
        yield
