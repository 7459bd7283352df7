"""Waits on many ZeroMQ sockets, at a cost that grows only with the number of ready ones.

ZeroMQ's file descriptor is edge-triggered: it announces that something happened, not that
something is left. So a reader that was woken reads in slices until it says that nothing is left,
in turn with all other readers: no publisher can starve another. An exception of a reader is passed
to that reader and stops no other. One thread owns a reactor; other threads may only call
`interrupt` and `hand_in`.
"""

import contextlib
import selectors
import socket
from collections import deque
from typing import Final, Protocol

import zmq

SLICE: Final = 256
"""The most messages that a reader takes per turn."""

SLICE_BYTES: Final = 1 << 20
"""A reader that has taken this many bytes ends its turn."""


class Reader(Protocol):
    """An object that is told that its socket may have something."""

    def read(self, now: float) -> bool:
        """Take up to a slice of messages; return whether more may be left. `now`: monotonic."""

    def on_error(self, error: BaseException) -> None:
        """Handle an exception that `read` raised."""


class Reactor:
    """Readers by socket, and those among them that still have something to read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._fds: dict[zmq.Socket[bytes], int] = {}
        self._busy: dict[Reader, None] = {}  # As an ordered set.
        self._woken: dict[Reader, None] = {}  # Likewise: their turn comes after the others'.
        self._handed_in: deque[Reader] = deque()  # By other threads.
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)

    def watch(self, watched: zmq.Socket[bytes], reader: Reader) -> None:
        """Tell `reader` what comes on the socket, beginning with what is already there."""
        fd = self._fds[watched] = watched.fileno()
        self._selector.register(fd, selectors.EVENT_READ, reader)
        self._busy[reader] = None

    def wake(self, reader: Reader) -> None:
        """Give turns to a reader that has something to do, whatever its sockets say."""
        self._woken[reader] = None

    def close_socket(self, watched: zmq.Socket[bytes]) -> None:
        """Stop watching a socket, if it was watched, and close it; drop what it has not sent."""
        fd = self._fds.pop(watched, None)
        if fd is not None:
            self._selector.unregister(fd)
        watched.close(linger=0)

    def forget(self, reader: Reader) -> None:
        """Do not call this reader again, unless it watches a socket again or is woken."""
        self._busy.pop(reader, None)
        self._woken.pop(reader, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until a reader is ready, `wake` is called, or the time is over."""
        is_idle = not self._busy and not self._woken
        for key, _ in self._selector.select(timeout_s if is_idle else 0):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            else:
                self._busy[key.data] = None
        while self._handed_in:
            self._busy[self._handed_in.popleft()] = None

    def read(self, now: float) -> None:
        """Give each ready reader one turn, and then each reader that was woken meanwhile."""
        for reader in list(self._busy):
            if reader in self._busy:  # A reader's turn may have closed another one.
                self._give_turn(reader, now)
        woken, self._woken = self._woken, {}
        for reader in woken:
            self._busy[reader] = None
            self._give_turn(reader, now)

    def interrupt(self) -> None:
        """End a `wait`; from any thread."""
        with contextlib.suppress(BlockingIOError):  # The pipe is full of wake-ups not read yet.
            self._wake_out.send(b"x")

    def hand_in(self, reader: Reader) -> None:
        """Give turns to a reader that has something to read without a socket; from any thread."""
        self._handed_in.append(reader)
        with contextlib.suppress(OSError):  # It is closed.
            self.interrupt()

    def close(self) -> None:
        """Close what is still watched, and the reactor."""
        for watched in list(self._fds):
            self.close_socket(watched)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _give_turn(self, reader: Reader, now: float) -> None:
        try:
            is_left = reader.read(now)
        except BaseException as error:  # noqa: BLE001  A panic of the core is no Exception.
            self.forget(reader)
            reader.on_error(error)
        else:
            if not is_left:
                self._busy.pop(reader, None)
