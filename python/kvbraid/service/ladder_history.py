"""The hit ladder over time: sums of the last hour in intervals of some seconds, per model.

Invariant: there are at most INTERVALS intervals, and at most MOST_ROWS rows (an interval's model)
over all of them; the oldest interval goes first, and the newest always stays. Its owner has the
lock and the clock.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kvbraid.service.answers import GapRow, LadderInterval, RungTokens
from kvbraid.service.rungs import Gap, GapName, GapReason

INTERVAL_S: Final = 10.0
INTERVALS: Final = 360
"""An hour."""

MOST_ROWS: Final = 20_000


@dataclass(slots=True)
class _Sums:
    """The sums of one model in one interval; they agree as those of the ladder do."""

    ended: int = 0
    reported: int = 0
    prompt: int = 0
    delivered: int = 0
    gaps: Counter[tuple[GapName, GapReason]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Interval:
    begin: float
    models: dict[str, _Sums] = field(default_factory=dict)


class LadderHistory:
    """Sums by interval, the oldest first."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=INTERVALS)
        self._num_rows = 0

    def add(self, model: str, rungs: RungTokens, gaps: Iterable[Gap], now: float) -> None:
        """Sum one request in the interval of now; a clock that goes back changes no order."""
        interval = self._at(now)
        sums = interval.models.get(model)
        if sums is None:
            sums = interval.models[model] = _Sums()
            self._num_rows += 1
            while self._num_rows > MOST_ROWS and len(self._intervals) > 1:
                self._forget_oldest()
        sums.ended += 1
        sums.reported += rungs.delivered is not None
        sums.prompt += rungs.prompt
        sums.delivered += rungs.delivered or 0
        for gap in gaps:
            sums.gaps[gap.name, gap.reason] += gap.tokens

    def _at(self, now: float) -> _Interval:
        begin = now // INTERVAL_S * INTERVAL_S
        if self._intervals and begin <= self._intervals[-1].begin:
            return self._intervals[-1]
        while self._intervals and (
            len(self._intervals) == INTERVALS
            or self._intervals[0].begin <= begin - INTERVALS * INTERVAL_S
        ):
            self._forget_oldest()
        self._intervals.append(_Interval(begin))
        return self._intervals[-1]

    def _forget_oldest(self) -> None:
        self._num_rows -= len(self._intervals.popleft().models)

    def rows(self, since_s: float = float("-inf")) -> list[LadderInterval]:
        """Return the rows of the intervals that begin at `since_s` or later, the oldest first."""
        return list(self._rows(since_s))

    def _rows(self, since_s: float) -> Iterator[LadderInterval]:
        for interval in self._intervals:
            if interval.begin < since_s:
                continue
            for model, sums in sorted(interval.models.items()):
                yield LadderInterval(
                    model=model,
                    begin_s=interval.begin,
                    ended=sums.ended,
                    reported=sums.reported,
                    prompt=sums.prompt,
                    delivered=sums.delivered,
                    gaps=[
                        GapRow(gap=name, reason=reason, tokens=tokens)
                        for (name, reason), tokens in sums.gaps.items()
                    ],
                )

    def check_integrity(self) -> None:
        """Assert order and limits. For tests."""
        begins = [interval.begin for interval in self._intervals]
        assert begins == sorted(set(begins)), begins
        assert self._num_rows == sum(len(interval.models) for interval in self._intervals)
        assert self._num_rows <= MOST_ROWS or len(self._intervals) == 1
