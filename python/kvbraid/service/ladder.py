"""The hit ladder of a server: sums of rungs and gaps in tokens, per model, since its start.

Invariant: every number only grows, and those of a model belong to the same requests: its gaps lead
from its `prompt` to its `delivered` without a rest. A request is summed once, when its end is
reported. Thread-safe.
"""

import time
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

from kvbraid.service.answers import (
    GapRow,
    LadderAnswer,
    LadderHistoryAnswer,
    LadderInterval,
    ModelLadder,
    RequestLadder,
    RungTokens,
)
from kvbraid.service.ladder_history import INTERVAL_S, LadderHistory
from kvbraid.service.rungs import Delivery, Gap, GapName, GapReason, Rungs, gaps_of

MOST_MODELS: Final = 1024
"""Further models are summed as `other`: whoever may register pods could make up many names."""

_OTHER: Final = "other"


class LadderSums(NamedTuple):
    """A copy of the sums, by model and by name of the rung, or of the gap and its reason.

    `requests` counts those that have `ended`; of these, those whose reuse was `reported`, and
    those of which a rung was `raised` to the next one.
    """

    requests: Counter[tuple[str, str]]
    tokens: Counter[tuple[str, str]]
    gaps: Counter[tuple[str, str, str]]


class Ladder:
    """Sums over the requests that have ended; `history` has them by time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.history = LadderHistory()
        self._lock = Lock()
        self._sums = LadderSums(Counter(), Counter(), Counter())
        self._models: set[str] = set()

    def add(self, rungs: Rungs, delivery: Delivery) -> RequestLadder:
        """Sum one request, and return its own rungs and gaps."""
        gaps = gaps_of(rungs, delivery)
        own = RungTokens(
            prompt=rungs.prompt,
            seen=rungs.seen,
            best=rungs.best,
            chosen=rungs.chosen,
            lower=rungs.lower,
            upper=rungs.upper,
            delivered=delivery.tokens,
        )
        with self._lock:
            model = self._known(rungs.model)
            self._add(model, rungs, own, gaps)
            self.history.add(model, own, gaps, self._clock())
        return RequestLadder(rungs=own, gaps=[_row(gap) for gap in gaps])

    def _known(self, model: str) -> str:
        if model in self._models or len(self._models) < MOST_MODELS:
            self._models.add(model)
            return model
        return _OTHER

    def _add(self, model: str, rungs: Rungs, own: RungTokens, gaps: list[Gap]) -> None:
        requests, tokens, by_reason = self._sums
        requests[model, "ended"] += 1
        requests[model, "reported"] += own.delivered is not None
        requests[model, "raised"] += rungs.is_raised
        for name in own.__struct_fields__:
            value = getattr(own, name)
            if value is not None or name == "delivered":
                tokens[model, name] += value or 0
        for gap in gaps:
            by_reason[model, gap.name.value, gap.reason.value] += gap.tokens

    def sums(self) -> LadderSums:
        """Return a copy of all sums, in which those of a model agree."""
        with self._lock:
            requests, tokens, gaps = self._sums
            return LadderSums(requests.copy(), tokens.copy(), gaps.copy())

    def since(self, since_s: float) -> list[LadderInterval]:
        """Return the sums of the intervals that begin at `since_s` or later."""
        with self._lock:
            return self.history.rows(since_s)

    def over_time(self) -> LadderHistoryAnswer:
        """Return all intervals as GET /v1/ladder/history has them."""
        rows = self.since(float("-inf"))
        return LadderHistoryAnswer(now_s=self._clock(), interval_s=INTERVAL_S, intervals=rows)

    def answer(self) -> LadderAnswer:
        """Return the sums as GET /v1/ladder has them, models in the order of their names."""
        sums = self.sums()
        models = sorted({model for model, _ in sums.requests})
        return LadderAnswer(models=[_model(model, sums) for model in models])


def _model(model: str, sums: LadderSums) -> ModelLadder:
    tokens = sums.tokens
    return ModelLadder(
        model=model,
        ended=sums.requests[model, "ended"],
        reported=sums.requests[model, "reported"],
        raised=sums.requests[model, "raised"],
        rungs=RungTokens(
            prompt=tokens[model, "prompt"],
            seen=tokens.get((model, "seen")),
            best=tokens[model, "best"],
            chosen=tokens[model, "chosen"],
            lower=tokens[model, "lower"],
            upper=tokens[model, "upper"],
            delivered=tokens[model, "delivered"],
        ),
        gaps=[
            GapRow(gap=name, reason=reason, tokens=sums.gaps[key])
            for name in GapName
            for reason in GapReason
            if (key := (model, name.value, reason.value)) in sums.gaps
        ],
    )


def _row(gap: Gap) -> GapRow:
    return GapRow(gap=gap.name, reason=gap.reason, tokens=gap.tokens)
