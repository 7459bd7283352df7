"""Waits on many ZeroMQ sockets at a cost that grows with the ready ones only.

ZeroMQ's file descriptor is edge-triggered: it announces that something happened, not that
something is left. So a reader that was woken is read in slices until it says that nothing is
left, in turn with all other readers: no publisher can starve another. One thread owns a reactor;
only `wake` may be called from others.
"""

import contextlib
import selectors
import socket
from typing import Final, Protocol

import zmq

SLICE: Final = 256
"""Messages that a reader takes per turn at most."""


class Reader(Protocol):
    """Someone to be told that a socket may have something."""

    def read(self, now: float) -> bool:
        """Take up to a slice of messages; return whether more may be left. `now`: monotonic."""


class Reactor:
    """Readers by socket, and those among them that still have something to read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._fds: dict[zmq.Socket[bytes], int] = {}
        self._busy: dict[Reader, None] = {}  # As an ordered set.
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)

    def watch(self, watched: zmq.Socket[bytes], reader: Reader) -> None:
        """Tell `reader` of what comes on the socket, starting with what is there already."""
        fd = self._fds[watched] = watched.fileno()
        self._selector.register(fd, selectors.EVENT_READ, reader)
        self._busy[reader] = None

    def close_socket(self, watched: zmq.Socket[bytes]) -> None:
        """Stop watching a socket and close it, dropping what is unsent and unread."""
        self._selector.unregister(self._fds.pop(watched))
        watched.close(linger=0)

    def forget(self, reader: Reader) -> None:
        """Never call this reader again, unless it watches anew."""
        self._busy.pop(reader, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until a reader is ready, `wake` is called, or the time is over."""
        for key, _ in self._selector.select(0 if self._busy else timeout_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            else:
                self._busy[key.data] = None

    def read(self, now: float) -> None:
        """Give each ready reader one turn."""
        for reader in list(self._busy):
            # A reader's turn may have closed another one.
            if reader in self._busy and not reader.read(now):
                self.forget(reader)

    def wake(self) -> None:
        """End a `wait`; from any thread."""
        self._wake_out.send(b"x")

    def close(self) -> None:
        """Close what is still watched, and the reactor."""
        for watched in list(self._fds):
            self.close_socket(watched)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
