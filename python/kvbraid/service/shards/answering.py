"""A shard's side: questions of fronts to answers of its index, and the promises of fronts.

Invariant: however many promises are made under whatever names, so many are kept, each for so long;
and a promise whose front has died ends by age. The clock is passed in. Thread-safe.
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

from kvbraid.ids import PodId
from kvbraid.service.ports import Index
from kvbraid.service.shards.messages import (
    PromiseQuestion,
    ScoreQuestion,
    ShardQuestion,
    WithdrawQuestion,
    answer,
)

MOST_PROMISES: Final = 65_536
LONGEST_PROMISE_S: Final = 900.0

DONE: Final = b"\x91\x01"
"""The answer to what only has to be done: `[1]`."""


class _Promised(NamedTuple):
    number: int
    ends_at: float


class Questions:
    """Answers the questions of fronts from an index."""

    def __init__(self, index: Index, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._index = index
        self._clock = clock
        self._lock = Lock()
        self._promised: dict[str, _Promised] = {}  # By the front's name, the oldest first.

    def answer(self, question: ShardQuestion) -> bytes:
        """Answer a question.

        Raises:
            UnknownError, InvalidValueError: As `FleetIndex.score` and `promise`.
        """
        match question:
            case ScoreQuestion(tiers=tiers, pods=pods, with_seen=with_seen):
                request = question.request(tiers, pods)
                return answer(self._index.score(request, with_seen=with_seen))
            case PromiseQuestion():
                self._promise(question)
            case WithdrawQuestion(promises=names):
                with self._lock:
                    for name in names:
                        self._end(name)
        return DONE

    def _promise(self, told: PromiseQuestion) -> None:
        now = self._clock()
        number = self._index.score(told.request(pods=[told.pod])).promise(
            PodId(told.pod),
            dp_rank=told.dp_rank,
            junction=told.junction,
            sparse_windows=told.sparse_windows,
        )
        with self._lock:
            self._end(told.promise)
            self._promised[told.promise] = _Promised(number, now + LONGEST_PROMISE_S)
            while len(self._promised) > MOST_PROMISES or self._oldest().ends_at <= now:
                self._end(next(iter(self._promised)))

    def _oldest(self) -> _Promised:
        return next(iter(self._promised.values()))

    def _end(self, name: str) -> None:
        promised = self._promised.pop(name, None)
        if promised is not None:
            self._index.withdraw(promised.number)

    def check_integrity(self) -> None:
        """Assert that what is kept is bounded, and in the order in which it ends. For tests."""
        ends = [each.ends_at for each in self._promised.values()]
        assert len(ends) <= MOST_PROMISES
        assert ends == sorted(ends)
