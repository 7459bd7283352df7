"""What sharing needs of a server of messages: `NatsServer` is one, and tests have others.

There is no code here.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from kvbraid.service.replicas import Server

Handler: TypeAlias = Callable[[str, bytes], None]
"""Takes a message: its subject and its bytes. What it raises is logged, and the next one comes."""


class MessageServer(Server, Protocol):
    """A server that is there, or not."""

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Stay connected until cancelled; `ready` subscribes at each connection."""
        ...

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message at once, or not at all."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Have messages handled while this connection lasts."""
        ...
