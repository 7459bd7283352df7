"""How many bytes of a connection wait to be read, including those in ZeroMQ's own queue.

ZeroMQ bounds its queues only in whole messages, and does not bound a message that never ends. But
the system counts the bytes of each connection: the bytes received minus the bytes handed over are
those that wait. This works on Linux only; elsewhere, and on transports other than tcp, nothing is
measured and `Meter.of` says so.

The bytes handed over are counted without frame headers and heartbeats, so a connection's count
starts from 0 again whenever everything has been read. A connection that hands over nothing never
starts again.
"""

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final, Self

_RECEIVED: Final = struct.Struct("=Q")
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_RECEIVED_AT: Final = 128
"""Where `tcp_info` of Linux 4.1 and later has `tcpi_bytes_received`."""


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """Look at a descriptor that ZeroMQ owns, without ever closing it."""
    opened = socket.socket(fileno=fd)
    try:
        yield opened
    finally:
        opened.detach()


def _names(opened: socket.socket) -> tuple[Any, Any]:
    """Return a name that no other connection of this process has at the same time."""
    return opened.getsockname(), opened.getpeername()


class Meter:
    """One tcp connection, by ZeroMQ's descriptor of it.

    Attributes:
        taken: Bytes handed over since the count began; the reader of a message adds its size.
    """

    def __init__(self, fd: int, names: tuple[Any, Any]) -> None:
        self.taken = 0
        self._fd = fd
        self._names = names
        self._begin = 0

    @classmethod
    def of(cls, fd: int) -> Self | None:
        """Measure a connection; None if that is not possible."""
        if not sys.platform.startswith("linux"):
            return None
        with contextlib.suppress(OSError), _borrowed(fd) as opened:
            if opened.family in (socket.AF_INET, socket.AF_INET6):
                return cls(fd, _names(opened))
        return None

    def unread(self, *, is_drained: bool) -> int:
        """Return how many bytes wait. `is_drained`: no whole message waits to be read."""
        received = self._received()
        waiting = received - self._begin - self.taken
        if is_drained and self.taken:
            self._begin, self.taken = received, 0
        return waiting

    def cut(self) -> None:
        """End the connection: ZeroMQ drops what it has not put together, and says so.

        The other side is told at once (a reset), and does not wait for us to read on.
        """
        with contextlib.suppress(OSError), _borrowed(self._fd) as opened:
            if _names(opened) == self._names:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                opened.shutdown(socket.SHUT_RDWR)

    def _received(self) -> int:
        """What the connection has received; what it had at last when it is gone already."""
        with contextlib.suppress(OSError), _borrowed(self._fd) as opened:
            if _names(opened) == self._names:
                size = _RECEIVED_AT + _RECEIVED.size
                info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
                if len(info) == size:
                    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])
        return self._begin
