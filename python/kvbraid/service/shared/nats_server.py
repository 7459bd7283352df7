"""A connection to a NATS server: made again and again until it is over, and never waited for.

Invariant: nothing is published but what goes out now, since a message that waits for a connection
is old when it arrives. Each connection begins anew, with its subscriptions: a client that made
them again by itself would also send again what it has kept. No other module imports `nats`.
"""

import asyncio
import contextlib
import logging
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError

from kvbraid.errors import one_line
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shared.ports import Handler, NoServerError, ReplyHandler

CONNECT_S: Final = 2
"""In which a server must have answered."""

PING_S: Final = 2
MOST_PINGS: Final = 2
"""A server that has not answered so many pings counts as gone."""

REQUEST_S: Final = 2
"""In which a question must be answered."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between attempts; half of each pause is random, so replicas do not come back all at once."""

MOST_MESSAGES: Final = 1024
MOST_BYTES: Final = 4 << 20
"""Of a subscription, that wait to be read; what comes above that is dropped and counted."""

MOST_WAIT: Final = 1 << 20
"""Bytes that wait to be sent; above that nothing is added, so that nothing is old."""

_LOGGER: Final = logging.getLogger("kvbraid.shared")


class NatsServer:
    """One server, as long as `run` runs.

    Attributes:
        problem: Why there is no connection; empty if there is one.
        counts: `connected`, `lost`, `failed` (attempts), `refused` (by a server that is there),
            `dropped` (messages that came too fast), `not_sent` (that could not go out at once).
    """

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._chance = random.Random()  # noqa: S311 - it spreads load
        self._client: Client | None = None
        self._error = ""  # What the client said last; what it raises may not tell the cause.
        self.problem = "it was not asked yet"
        self.counts = Counter(connected=0, lost=0, failed=0, refused=0, dropped=0, not_sent=0)

    @property
    def client(self) -> Client | None:
        """The connection, for what is not done here; None if there is none."""
        return self._client

    @property
    def max_payload(self) -> int:
        """The most bytes of a message; 0 without a connection."""
        return 0 if self._client is None else self._client.max_payload

    async def run(
        self, ready: Callable[[], Awaitable[None]], lost: Callable[[], None] = lambda: None
    ) -> None:
        """Connect until cancelled; `ready` is called at each connection, `lost` after it."""
        pause_s = FIRST_PAUSE_S
        while True:
            self._error = ""
            try:
                async with self._connected() as client:
                    await ready()
                    pause_s = FIRST_PAUSE_S
                    self._note(None)
                    while not client.is_closed:  # It says so as soon as it gives up.
                        await asyncio.sleep(FIRST_PAUSE_S)
                self._note("the connection was lost")
                self.counts["lost"] += 1
            except Exception as error:  # noqa: BLE001  Whatever it is that answers there.
                self._note(self._error or one_line(str(error) or type(error).__name__))
                self.counts["failed"] += 1
            finally:
                lost()
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message if it can go out at once; return whether it did.

        A server that reads too slowly gets less, and nothing that is old.
        """
        client = self._client
        try:
            if client is not None and client.is_connected and client.pending_data_size < MOST_WAIT:
                await client.publish(subject, payload)
                return True
        except Error as error:  # Also a message that is longer than the server takes.
            _LOGGER.debug("nothing is published: %s", error)
        self.counts["not_sent"] += 1
        return False

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Have messages handled until this connection ends; call it from `ready`."""
        await self._subscribe(
            subject,
            lambda message: handler(message.subject, message.data),
            most=(MOST_MESSAGES, MOST_BYTES),
        )

    async def open_mailbox(self, handler: ReplyHandler) -> str:
        """Return a subject whose parts are answered to; every answer is handled."""
        client = self._connected_client()
        mailbox = str(client.new_inbox())
        await self._subscribe(
            f"{mailbox}.*",
            lambda it: handler(it.subject, it.reply, it.data, it.headers or {}),
            most=(0, 0),  # As much comes as was asked for.
        )
        return mailbox

    async def send(
        self, subject: str, payload: bytes, *, reply: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send a message that is answered to `reply`.

        Raises:
            NoServerError: It cannot go out.
        """
        try:
            await self._connected_client().publish(subject, payload, reply, headers)
        except (Error, OSError) as error:
            raise NoServerError(one_line(str(error) or type(error).__name__)) from None

    async def request(self, subject: str, payload: bytes) -> bytes:
        """Return the answer to a message.

        Raises:
            NoServerError: There is none in time.
        """
        try:
            answer = await self._connected_client().request(subject, payload, timeout=REQUEST_S)
        except (Error, OSError, TimeoutError) as error:
            told = self._error or one_line(str(error) or type(error).__name__)
            raise NoServerError(f"{subject}: {told}") from None
        return bytes(answer.data)

    def _connected_client(self) -> Client:
        if self._client is None:
            raise NoServerError("there is no connection")
        return self._client

    async def _subscribe(
        self, subject: str, take: Callable[[Msg], None], *, most: tuple[int, int]
    ) -> None:
        async def handle(message: Msg) -> None:
            try:
                take(message)
            except Exception:  # The next message may be a better one.
                _LOGGER.exception("a message of %s could not be taken", message.subject)

        messages, num_bytes = most
        await self._connected_client().subscribe(
            subject, cb=handle, pending_msgs_limit=messages, pending_bytes_limit=num_bytes
        )

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        table, client = self._table, Client()
        assert table.url is not None  # Without one there is no server.
        password = _first_line(table.password_file)
        tls = _context(table.ca) if table.url.startswith("tls:") else None
        try:
            await client.connect(
                table.url,
                name=f"kvbraid {table.fleet} {table.name}",
                no_echo=True,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # Even so it tries twice before it says anything.
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                ping_interval=PING_S,
                max_outstanding_pings=MOST_PINGS,
                error_cb=self._on_error,
                user=table.user,
                password=password,
                tls=tls,
            )
            self._client = client
            yield client
        finally:
            self._client = None
            await _close(client)

    async def _on_error(self, error: Exception) -> None:
        """Note what the client says; all else is raised where it happens."""
        if isinstance(error, SlowConsumerError):
            self.counts["dropped"] += 1
        else:
            self._error = one_line(str(error) or type(error).__name__)
            self.counts["refused"] += self._client is not None  # A subject, for example.
            _LOGGER.debug("NATS: %s", self._error)

    def _note(self, problem: str | None) -> None:
        """Say once that a server is there, or is not."""
        if problem is None:
            self.problem = ""
            self.counts["connected"] += 1
            _LOGGER.info("connected to %s", self._table.url)
            return
        if self.problem != problem:
            _LOGGER.warning("%s: %s", self._table.url, problem)
        self.problem = problem


async def _close(client: Client) -> None:
    """Close a connection, whatever has become of it."""
    with contextlib.suppress(Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), CONNECT_S)
    # If the client could not send its last bytes, it has left the socket open.
    if client._transport is not None:
        client._transport.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)  # The loop closes it in its next turn.


def _first_line(file: str | None) -> str | None:
    """Return the first line of a file; it is read at each attempt, so it may be changed."""
    return None if file is None else Path(file).read_text("utf-8").partition("\n")[0].strip()


def _context(ca: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)
