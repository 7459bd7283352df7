"""What the router asks of an index, as protocols: `FleetIndex` and the fakes of tests have them.

There is no code here.
"""

from typing import Protocol

from kvbraid.fleet import Columns, Request
from kvbraid.ids import PodId


class Remembered(Protocol):
    """How much of a request was ever there, in tokens, and how much the index has forgotten."""

    @property
    def tokens(self) -> int:
        """The longest prefix that was ever shown."""
        ...

    @property
    def num_forgotten(self) -> int:
        """How many boundaries were forgotten; 0: what is not known was never shown."""
        ...


class Promisable(Protocol):
    """One scored request, which can be promised to a rank."""

    @property
    def seen(self) -> Remembered | None:
        """What was ever there of it, where that was asked for and the index remembers."""
        ...

    def columns(self) -> Columns:
        """Return the numbers of all rows, and what was promised."""
        ...

    def promise(
        self,
        pod: PodId,
        *,
        dp_rank: int = 0,
        junction: int = 0,
        sparse_windows: bool | None = None,
    ) -> int:
        """Note that the request is on its way to a rank; return the promise's number."""
        ...


class Promising(Protocol):
    """The index; thread-safe. Its calls raise what those of `FleetIndex` raise."""

    def score(self, request: Request, *, with_seen: bool = False) -> Promisable:
        """Say how much each rank could reuse, and what was ever there if that is asked."""
        ...

    def withdraw(self, promise: int) -> bool:
        """End a promise; say whether it still counted."""
        ...

    def num_promised(self) -> int:
        """Return how many promises count."""
        ...
