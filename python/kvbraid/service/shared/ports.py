"""What sharing needs of a server of messages: `NatsServer` is one, and tests have others.

There is no code here.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from kvbraid.service.replicas import Server

Handler: TypeAlias = Callable[[str, bytes], None]
"""Takes a message: its subject and its bytes. What it raises is logged, and the next one comes."""

ReplyHandler: TypeAlias = Callable[[str, str, bytes, Mapping[str, str]], None]
"""Takes an answer: its subject, where it is answered to, its bytes, its headers."""


class NoServerError(Exception):
    """A server did not take a message, or did not answer; the text says why."""


class MessageServer(Server, Protocol):
    """A server that is there, or not."""

    async def run(
        self, ready: Callable[[], Awaitable[None]], lost: Callable[[], None] = ...
    ) -> None:
        """Stay connected until cancelled; `ready` subscribes at each connection."""
        ...

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message at once, or not at all."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Have messages handled while this connection lasts."""
        ...


class LogServer(MessageServer, Protocol):
    """A server that answers, and keeps streams of messages."""

    @property
    def max_payload(self) -> int:
        """The most bytes of a message."""
        ...

    async def open_mailbox(self, handler: ReplyHandler) -> str:
        """Return a subject whose parts are answered to while this connection lasts."""
        ...

    async def send(
        self, subject: str, payload: bytes, *, reply: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send a message that is answered to `reply`; or raise NoServerError."""
        ...

    async def request(self, subject: str, payload: bytes) -> bytes:
        """Return the answer to a message; or raise NoServerError."""
        ...
