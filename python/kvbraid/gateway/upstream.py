"""Requests to pods over aiohttp: connections, and what goes wrong with them as one kind of error.

Nothing is decompressed, followed or kept between requests but connections. What a pod sends is
read only when somebody asks for more of it, so a slow client slows down its pod.
"""

from collections.abc import AsyncIterator
from typing import Final, Literal, TypeAlias

import aiohttp
from yarl import URL

from kvbraid.errors import KvbraidError, one_line
from kvbraid.gateway.headers import to_client
from kvbraid.service.forwarding import ForwardingOptions

Failure: TypeAlias = Literal[
    "not_connected", "disconnected", "not_http", "no_first_byte", "silent", "other"
]
"""How a pod can fail: before an answer, or in the middle of one."""

Payload: TypeAlias = bytes | AsyncIterator[bytes] | None

_FAILURES: Final[tuple[tuple[type[BaseException], Failure], ...]] = (
    (aiohttp.ClientConnectorError, "not_connected"),
    (aiohttp.ConnectionTimeoutError, "not_connected"),
    (aiohttp.ServerDisconnectedError, "disconnected"),
    (aiohttp.ClientOSError, "disconnected"),
    (aiohttp.ClientPayloadError, "disconnected"),
    (aiohttp.ClientResponseError, "not_http"),
)
"""The first that fits counts; all others are `other`."""

_SKIPPED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class PodError(KvbraidError):
    """A pod gave no answer, or not the whole of it."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(one_line(message))
        self.failure = failure


class Opened:
    """An answer of which the head and the first bytes are there."""

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self._response = response
        self.first = first
        self.status = response.status
        self.headers = to_client(response.raw_headers)
        self.is_events = response.content_type == "text/event-stream"

    def is_complete(self) -> bool:
        """Whether everything has been read."""
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        """Return what has come since; nothing at the end.

        Raises:
            PodError: The answer was cut short.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _as_pod_error(error) from None

    def close(self) -> None:
        """Give up the rest. The pod sees that its connection is closed."""
        self._response.close()


class Upstream:
    """A pool of connections to pods. It opens on the loop of its first request."""

    def __init__(self, options: ForwardingOptions) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    async def open(
        self, method: str, url: URL, headers: list[tuple[str, str]], payload: Payload
    ) -> Opened:
        """Send a request, and wait for the first bytes of its answer.

        Raises:
            PodError: There is none.
        """
        if self._session is None:
            self._session = self._new_session()
        try:
            response = await self._session.request(
                method, url, headers=headers, data=payload, allow_redirects=False
            )
            try:
                return Opened(response, await response.content.readany())
            except BaseException:
                response.close()
                raise
        except (aiohttp.ClientError, OSError) as error:
            raise _as_pod_error(error) from None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        options = self._options
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=options.idle_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED,
            auto_decompress=False,
        )


def _as_pod_error(error: Exception) -> PodError:
    told = str(error) or type(error).__name__
    for kind, failure in _FAILURES:
        if isinstance(error, kind):
            return PodError(failure, told)
    return PodError("other", told)
