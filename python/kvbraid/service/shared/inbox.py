"""What the log of events brings to one rank, from the log's thread to the subscriber's.

Invariant: one thread puts and one takes, in order. What waits is counted in bytes, and whoever
puts asks before it gets more. There is no socket and no clock in it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from kvbraid.ids import PodId

BESIDE_BYTES: Final = 200
"""What a batch takes besides its payload, about."""

CAUGHT_UP: Final = -1


class LoggedBatch(NamedTuple):
    """A batch of the log, for the question `ask`; the number CAUGHT_UP says that none is left.

    Numbers of one `start` are of one engine process, as far as the relay knows.
    """

    ask: int
    start: str
    seq: int
    payload: bytes


class Inbox:
    """The batches of one rank that wait.

    Attributes:
        connection: Which connection to the log stands, counted from 1; 0: none. The log sets it.
    """

    def __init__(self, pod: PodId, rank: int, wake: Callable[[], None]) -> None:
        self.pod, self.rank = pod, rank
        self.connection = 0
        self.wake = wake
        self._items: deque[LoggedBatch] = deque()
        self._put_bytes = self._taken_bytes = 0  # One thread counts each.

    @property
    def num_bytes(self) -> int:
        """How many bytes wait, about."""
        return self._put_bytes - self._taken_bytes

    def put(self, batch: LoggedBatch) -> None:
        """Add a batch, and wake who takes them if none waited."""
        self._put_bytes += len(batch.payload) + BESIDE_BYTES
        self._items.append(batch)
        if len(self._items) == 1:
            self.wake()

    def take(self) -> LoggedBatch | None:
        """Return the next batch, if there is one."""
        try:
            batch = self._items.popleft()
        except IndexError:
            return None
        self._taken_bytes += len(batch.payload) + BESIDE_BYTES
        return batch


class LogSource(Protocol):
    """A log of events; each call comes from any thread, and waits for nothing."""

    def follow(self, inbox: Inbox) -> None:
        """Set the inbox's `connection` from now on, and wake it then."""

    def leave(self, inbox: Inbox) -> None:
        """Put nothing into the inbox any more, soon."""

    def ask(self, inbox: Inbox, ask: int, start: str, seq: int) -> None:
        """Put batches of a start from `seq` on, and all that come later; replaces an earlier ask.

        Without a `start` they are those of the last one that the log has.
        """
