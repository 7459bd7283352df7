"""What was made of bytes lately, so that the same bytes are not read again.

Invariant: the accounted bytes of what is kept are at most its limit, whatever shards say.
Thread-safe.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, NamedTuple, TypeVar

MOST_KEPT_BYTES: Final = 16 << 20

_Key = TypeVar("_Key", bound=Hashable)
_Made = TypeVar("_Made")


class _Entry(NamedTuple, Generic[_Made]):
    made: _Made
    num_bytes: int


class Kept(Generic[_Key, _Made]):
    """A function whose results are kept; above the limit, what nobody asked for longest goes.

    `cost` says how many bytes a key and its result take at most.

    Attributes:
        num_bytes: The accounted bytes of all that is kept.
    """

    def __init__(
        self,
        make: Callable[[_Key], _Made],
        cost: Callable[[_Key, _Made], int],
        limit_bytes: int = MOST_KEPT_BYTES,
    ) -> None:
        self._make = make
        self._cost = cost
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._entries: OrderedDict[_Key, _Entry[_Made]] = OrderedDict()  # The last asked last.
        self.num_bytes = 0

    def __call__(self, key: _Key) -> _Made:
        """Return what is made of a key; raises what making it raises, and keeps nothing then."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found.made
        made = self._make(key)
        entry = _Entry(made, self._cost(key, made))
        with self._lock:
            if entry.num_bytes <= self._limit_bytes and key not in self._entries:
                self._entries[key] = entry
                self.num_bytes += entry.num_bytes
            while self.num_bytes > self._limit_bytes:
                self.num_bytes -= self._entries.popitem(last=False)[1].num_bytes
        return made

    def check_integrity(self) -> None:
        """Assert that all is accounted for, and within the limit. For tests."""
        assert self.num_bytes == sum(each.num_bytes for each in self._entries.values())
        assert self.num_bytes <= self._limit_bytes
