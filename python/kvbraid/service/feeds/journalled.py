"""A sink that passes everything on, and writes down what an operator wants to know of it."""

from collections.abc import Sequence
from typing import Final

from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.rank_feed import Sink, SinkOutcome
from kvbraid.service.journal import Journal, Rank

_EXPLAINED: Final = "counted in GET /v1/pods, explained in docs/events.md"


class JournalledSink:
    """See `Sink` for the calls: each does what that of the inner sink does."""

    def __init__(self, sink: Sink, journal: Journal) -> None:
        self._sink = sink
        self._journal = journal

    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> Sequence[SinkOutcome]:
        """Also note events that were refused."""
        applied = self._sink.apply_many(pod, payloads, dp_rank=dp_rank, budget_s=budget_s)
        refused = sum([row.refused for row in applied])
        if refused:
            told = f"{refused}, {_EXPLAINED}"
            self._journal.note("refused", Rank(pod, dp_rank), told, detail="events")
        return applied

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Also note it."""
        self._sink.reset(pod, dp_rank=dp_rank)
        told = "what the rank held, because its engine has restarted or its feed begins again"
        self._journal.note("forgotten", Rank(pod, dp_rank), told)

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Also note it."""
        self._sink.lose(pod, dp_rank=dp_rank)
        told = "messages, for good: the answers are bounds until the engine's cache is empty"
        self._journal.note("lost", Rank(pod, dp_rank), told)

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Also note it."""
        self._sink.set_state(pod, state, dp_rank=dp_rank, reason=reason)
        told = f"{state.value}, {reason}" if reason else state.value
        self._journal.note("state", Rank(pod, dp_rank), told)

    def note_refused(self, pod: PodId, reason: str, *, dp_rank: int = 0) -> None:
        """Also note it."""
        self._sink.note_refused(pod, reason, dp_rank=dp_rank)
        self._journal.note("refused", Rank(pod, dp_rank), _EXPLAINED, detail=reason)
