"""The body of a request: kept as a whole, or passed on while it arrives.

Whatever is kept is counted with the bodies of all requests, and released once. More is read only
when somebody wants it, so a pod that reads slowly slows down its client.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

from kvbraid.service.errors import RefusalError
from kvbraid.service.http.app import ClientGoneError, Receive
from kvbraid.service.http.connection_limits import ConnectionLimits

PIECE_BYTES: Final = 64 << 10
"""A long body goes out in pieces of this size: a slow pod does not make us hold it twice."""


class Body:
    """What has arrived of a body, and how to get the rest."""

    def __init__(self, receive: Receive, limits: ConnectionLimits) -> None:
        self._receive = receive
        self._limits = limits
        self._kept: bytes | bytearray = b""
        self.is_complete = False
        self.is_lost = False  # The client left before all of it had come.

    async def read(self, most: int) -> None:
        """Keep the body until it is complete, or longer than this.

        Raises:
            ClientGoneError: The client left.
            RefusalError: `overloaded`.
        """
        while not self.is_complete and len(self._kept) <= most:
            piece = await self._next()
            self._limits.hold(len(piece))
            if not self._kept:
                self._kept = piece
                continue
            if isinstance(self._kept, bytes):
                self._kept = bytearray(self._kept)
            self._kept += piece

    async def read_whole(self, given: Mapping[bytes, bytes]) -> bytes:
        """Keep the whole body and return it; `given` are the headers of its request.

        Raises:
            ClientGoneError: The client left.
            RefusalError: `overloaded`, or `body_too_large`: before a client that asks first has
                sent it, if it says how long it is.
        """
        limit = self._limits.limits.body_bytes
        length = int(given.get(b"content-length", b"0"))
        if length <= limit:
            await self.read(limit)
            length = len(self)
        if length > limit:
            raise RefusalError("body_too_large", f"{length} bytes; limit {limit}")
        return self.kept()

    def __len__(self) -> int:
        return len(self._kept)

    def kept(self) -> bytes:
        """Return what was kept, without a copy if it came in one piece."""
        self._kept = bytes(self._kept)
        return self._kept

    def replace(self, whole: bytes) -> None:
        """Keep another body instead of this one, which is complete.

        Raises:
            RefusalError: `overloaded`.
        """
        self._limits.hold(len(whole) - len(self._kept))
        self._kept = whole

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what was kept, and then the rest as it arrives."""
        kept = self.kept()  # Even if it is released meanwhile, because an answer comes early.
        for start in range(0, len(kept), PIECE_BYTES):
            yield kept[start : start + PIECE_BYTES]
        while not self.is_complete:
            yield await self._next()

    def release(self) -> None:
        """Forget what was kept. Nothing may need it any more."""
        self._limits.release(len(self._kept))
        self._kept = b""

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_lost = True
            raise ClientGoneError
        self.is_complete = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
