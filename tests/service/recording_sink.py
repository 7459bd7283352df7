"""A sink that records what a subscriber does to it, and lets a test wait for it."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvbraid.ids import PodId, PodState

TIMEOUT_S = 20.0
CLEAR = b"clear"


@dataclass(frozen=True)
class Applied:
    cleared: int
    refused: int = 0


@dataclass
class Rank:
    """What the sink was told of one pod and rank; batches since the last reset."""

    batches: list[bytes] = field(default_factory=list)
    resets: int = 0
    losses: int = 0
    states: list[PodState] = field(default_factory=list)
    reason: str = ""
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> PodState | None:
        return self.states[-1] if self.states else None


class RecordingSink:
    """Applies nothing; a payload that begins with `clear` counts as a clear."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], Rank] = {}
        self.gathered: list[int] = []  # How many batches came in one call.
        self._changed = threading.Condition()

    def rank(self, pod: str, dp_rank: int = 0) -> Rank:
        return self.ranks.setdefault((pod, dp_rank), Rank())

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, looking at it after each call of the subscriber."""
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), self.ranks

    def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
        with self._changed:
            self.rank(pod, dp_rank).batches.append(payload)
            self._changed.notify_all()
        return Applied(cleared=int(payload.startswith(CLEAR)))

    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> list[Applied]:
        assert budget_s > 0
        self.gathered.append(len(payloads))
        return [self.apply(pod, payload, dp_rank=dp_rank) for payload in payloads]

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        with self._changed:
            rank = self.rank(pod, dp_rank)
            rank.batches.clear()
            rank.resets += 1
            self._changed.notify_all()

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        with self._changed:
            self.rank(pod, dp_rank).losses += 1
            self._changed.notify_all()

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        with self._changed:
            rank = self.rank(pod, dp_rank)
            rank.states.append(state)
            rank.reason = reason
            self._changed.notify_all()

    def note_refused(self, pod: PodId, reason: str, *, dp_rank: int = 0) -> None:
        with self._changed:
            self.rank(pod, dp_rank).refused[reason] += 1
            self._changed.notify_all()
