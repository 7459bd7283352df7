"""Replays captures: every request's reuse is predicted before the index sees any later event.

The index sees what a subscriber would have seen, in that order, and nothing else. If a prediction
is not exact, the replay proves the reason. The engine had been reset and had not said so yet; or
the events that explain the truth were not published yet (adding them makes the prediction exact);
or the hash function is not known; or the producer's reports drift.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal

import msgspec

from kvbraid.fleet.index import FleetIndex, IndexOptions, Keys, Presence
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.sim.captures.read import CacheReset, Capture, Lookup

_POD: Final = PodId("pod")
_MODEL: Final = "model"

Reason = Literal["late_clear", "in_flight", "undecided", "drift", "unexplained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to replay: how hashes are placed, how copies count, and whether reports may drift."""

    keys: Keys = "auto"
    presence: Presence = "count"
    full_reports: bool = False


@dataclass(slots=True)
class Report:
    """What a replay found: counts of requests, and sums of tokens.

    `exact` counts the requests with lower = upper = truth, `over` those with lower above the
    truth, `under` those with upper below it, and `bounded` the others. `exact_pct` leaves out the
    requests of class `late_clear`.
    """

    capture: str
    requests: int = 0
    exact: int = 0
    over: int = 0
    under: int = 0
    bounded: int = 0
    bounds_kept: int = 0
    exact_pct: float = 100.0
    lower_sum: int = 0
    upper_sum: int = 0
    true_sum: int = 0
    trivial_sum: int = 0
    by_class: dict[str, int] = field(default_factory=dict)
    late_clear_max: int = 0
    placed: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as values that JSON can hold."""
        return asdict(self)


def replay(
    capture: Capture,
    options: ReplayOptions | None = None,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Replay one capture. `progress` is called with the number of operations that are done."""
    options = options or ReplayOptions()
    player = _Player(capture, options)
    report = Report(capture.name)
    reasons: Counter[str] = Counter()
    is_cleared_unseen = False
    for done, operation in enumerate(capture.operations, start=1):
        progress(done, len(capture.operations))
        if isinstance(operation, CacheReset):
            is_cleared_unseen = True
            report.late_clear_max += 1
            continue
        lower, upper = player.predict(operation)
        verdict = _verdict(lower, upper, operation.reused_tokens)
        _count(report, operation, (lower, upper), verdict)
        if verdict != "exact":
            reasons[_reason(operation, verdict, player, is_cleared_unseen)] += 1
        is_cleared_unseen = False
    report.by_class = {"late_clear": 0, "in_flight": 0, **reasons}
    judged = report.requests - report.by_class["late_clear"]
    report.exact_pct = round(100 * report.exact / judged, 4) if judged else 100.0
    report.placed = player.index.pods()[0].placed
    return report


class _Player:
    """An index, and how much of the capture it has seen."""

    def __init__(self, capture: Capture, options: ReplayOptions) -> None:
        self.capture = capture
        self.options = options
        self.index = FleetIndex(IndexOptions(keys=options.keys, presence=options.presence))
        self._seen = 0
        engine = capture.engine
        if options.full_reports:
            engine = replace(engine, report_mode="full")
        self.index.register(
            _POD, model=_MODEL, topology=capture.topology, engine=engine, loras=capture.loras
        )

    def predict(self, lookup: Lookup) -> tuple[int, int]:
        """Predict from the messages that had been published when the engine looked."""
        for message in self.capture.messages[self._seen : lookup.messages_seen]:
            self.index.apply(_POD, message.payload)
        self._seen = max(self._seen, lookup.messages_seen)
        request = Request(
            model=_MODEL,
            token_ids=memoryview(array("Q", lookup.token_ids)),
            lora=lookup.lora,
            cache_salt=lookup.cache_salt,
        )
        row = self.index.score(request).rows[0]
        return row.lower, row.upper

    def add_unpublished(self, lookup: Lookup) -> None:
        """Apply the events that existed at the lookup but were published only after it."""
        if lookup.unpublished:
            payload = self.capture.messages[lookup.messages_seen].payload
            ts, events, *rest = msgspec.msgpack.decode(payload)
            part = msgspec.msgpack.encode([ts, events[: lookup.unpublished], *rest])
            self.index.apply(_POD, part)


def _verdict(lower: int, upper: int, truth: int) -> Literal["exact", "over", "under", "bounded"]:
    if lower == upper == truth:
        return "exact"
    if lower > truth:
        return "over"
    return "under" if upper < truth else "bounded"


def _count(report: Report, lookup: Lookup, bounds: tuple[int, int], verdict: str) -> None:
    lower, upper = bounds
    report.requests += 1
    report.lower_sum += lower
    report.upper_sum += upper
    report.true_sum += lookup.reused_tokens
    report.trivial_sum += len(lookup.token_ids) - 1
    report.bounds_kept += lower <= lookup.reused_tokens <= upper
    setattr(report, verdict, getattr(report, verdict) + 1)


def _reason(lookup: Lookup, verdict: str, player: _Player, is_cleared_unseen: bool) -> Reason:
    """Return why a prediction is not exact. Each reason is checked, and none is assumed."""
    if is_cleared_unseen and lookup.reused_tokens == 0:
        return "late_clear"
    if verdict == "bounded":
        return "drift" if player.options.full_reports else "undecided"
    again = _Player(player.capture, player.options)
    again.predict(lookup)
    again.add_unpublished(lookup)
    lower, upper = again.predict(lookup)
    is_proven = lookup.unpublished > 0 and lower == upper == lookup.reused_tokens
    return "in_flight" if is_proven else "unexplained"
