"""Replays captures: every request's reuse is predicted before the index sees any later event.

The index sees what a subscriber would have seen, in that order, and nothing else. If a prediction
is not exact, the replay proves the reason. The engine had been reset and had not said so yet; or
the events that explain the truth were not published yet (with them the prediction holds it); or
the answer is a bound, because the hash function is not known or the wire does not tell all; or
the producer's reports drift.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final, Literal, NamedTuple

import msgspec

from kvbraid.fleet.index import FleetIndex, IndexOptions, Keys, Presence
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.sim.captures.read import CacheReset, Capture, Lookup

_POD: Final = PodId("pod")
_MODEL: Final = "model"

Reason = Literal["late_clear", "in_flight", "undecided", "drift", "unexplained"]
EXCUSES: Final[tuple[Reason, ...]] = ("late_clear", "in_flight")
"""The reasons that lie with the engine: it had not published yet what explains the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to replay: how hashes are placed, how copies count, whether reports may drift, and
    whether the index is told which requests the engine got, and what it produced.
    """

    keys: Keys = "auto"
    presence: Presence = "count"
    full_reports: bool = False
    routed: bool = False

    @property
    def of_index(self) -> IndexOptions:
        """The options of the index that predicts."""
        return IndexOptions(keys=self.keys, presence=self.presence)


@dataclass(slots=True)
class Report:
    """What a replay found: counts of requests, and sums of tokens.

    `exact` counts the requests with lower = upper = truth, `over` those with lower above the
    truth, `under` those with upper below it, and `bounded` the others. `exact_pct` is the share
    of `exact` in all requests. `excused` counts those of the others whose reason is one of
    `EXCUSES`. `expected_exact` counts the requests whose expected value is the truth, and
    `width_sum` adds up upper - lower.
    """

    capture: str
    requests: int = 0
    exact: int = 0
    over: int = 0
    under: int = 0
    bounded: int = 0
    excused: int = 0
    bounds_kept: int = 0
    expected_exact: int = 0
    width_sum: int = 0
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


_SUMS: Final = tuple(each.name for each in fields(Report) if each.type is int)


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
        answer = player.predict(operation)
        if options.routed:
            player.tell_routed(operation)
        verdict = _verdict(answer, operation.reused_tokens)
        _count(report, operation, answer, verdict)
        if verdict != "exact":
            reasons[_reason(operation, verdict, player, is_cleared_unseen)] += 1
        is_cleared_unseen = False
    report.by_class = {**dict.fromkeys(EXCUSES, 0), **reasons}
    report.excused = sum(report.by_class[excuse] for excuse in EXCUSES)
    report.exact_pct = percent(report.exact, report.requests, decimals=4)
    report.placed = player.index.pods()[0].placed
    return report


def total(reports: Sequence[Report], name: str) -> Report:
    """Return the sums of what replays found, under a name of their own."""
    added = Report(name)
    for field_name in _SUMS:
        setattr(added, field_name, sum(getattr(report, field_name) for report in reports))
    for report in reports:
        added.by_class = dict(Counter(added.by_class) + Counter(report.by_class))
        added.placed = dict(Counter(added.placed) + Counter(report.placed))
    added.exact_pct = percent(added.exact, added.requests, decimals=4)
    return added


def percent(part: int, whole: int, *, decimals: int) -> float:
    """Return a share in percent, rounded down so that 100 means all. All of nothing is 100."""
    scale = 10**decimals
    return 100 * scale * part // whole / scale if whole else 100.0


class _Answer(NamedTuple):
    """What was predicted for a request, in tokens."""

    lower: int
    upper: int
    expected: int


class _Player:
    """An index, and how much of the capture it has seen."""

    def __init__(self, capture: Capture, options: ReplayOptions) -> None:
        self.capture = capture
        self.options = options
        self.index = FleetIndex(options.of_index)
        self._seen = 0
        engine = capture.engine
        if options.full_reports:
            engine = replace(engine, report_mode="full")
        self.index.register(
            _POD, model=_MODEL, topology=capture.topology, engine=engine, loras=capture.loras
        )

    def predict(self, lookup: Lookup) -> _Answer:
        """Predict from the messages that had been published when the engine looked."""
        for message in self.capture.messages[self._seen : lookup.messages_seen]:
            self.index.apply(_POD, message.payload)
        self._seen = max(self._seen, lookup.messages_seen)
        return self._answer(lookup)

    def predict_unpublished(self, lookup: Lookup) -> _Answer:
        """Predict with what existed at the lookup, but was published only after it.

        Only the first prediction of a player can be this one.
        """
        for piece in self.capture.pieces[: lookup.pieces_seen]:
            self.index.apply(_POD, piece)
        if lookup.pieces_seen:
            return self._answer(lookup)
        self.predict(lookup)
        payload = self.capture.messages[lookup.messages_seen].payload
        ts, events, *rest = msgspec.msgpack.decode(payload)
        part = msgspec.msgpack.encode([ts, events[: lookup.unpublished], *rest])
        self.index.apply(_POD, part)
        return self._answer(lookup)

    def tell_routed(self, lookup: Lookup) -> None:
        """Tell the index that the engine got this request, and what it answered."""
        self.index.routed(_POD, self._request(lookup), lookup.outputs)

    def _answer(self, lookup: Lookup) -> _Answer:
        row = self.index.score(self._request(lookup)).rows[0]
        return _Answer(row.lower, row.upper, row.expected)

    def _request(self, lookup: Lookup) -> Request:
        return Request(
            model=_MODEL,
            token_ids=memoryview(array("Q", lookup.token_ids)),
            lora=lookup.lora,
            cache_salt=lookup.cache_salt,
            extra_key=lookup.extra_key,
            tiers=self.capture.tiers,
        )


def _verdict(answer: _Answer, truth: int) -> Literal["exact", "over", "under", "bounded"]:
    if answer.lower == answer.upper == truth:
        return "exact"
    if answer.lower > truth:
        return "over"
    return "under" if answer.upper < truth else "bounded"


def _count(report: Report, lookup: Lookup, answer: _Answer, verdict: str) -> None:
    truth = lookup.reused_tokens
    report.requests += 1
    report.lower_sum += answer.lower
    report.upper_sum += answer.upper
    report.width_sum += answer.upper - answer.lower
    report.true_sum += truth
    report.trivial_sum += len(lookup.token_ids) - 1
    report.bounds_kept += answer.lower <= truth <= answer.upper
    report.expected_exact += answer.expected == truth
    setattr(report, verdict, getattr(report, verdict) + 1)


def _reason(lookup: Lookup, verdict: str, player: _Player, is_cleared_unseen: bool) -> Reason:
    """Return why a prediction is not exact. Each reason is checked, and none is assumed."""
    if is_cleared_unseen and lookup.reused_tokens == 0:
        return "late_clear"
    if verdict == "bounded":
        return "drift" if player.options.full_reports else "undecided"
    if not lookup.unpublished and not lookup.pieces_seen:
        return "unexplained"
    answer = _Player(player.capture, player.options).predict_unpublished(lookup)
    is_proven = answer.lower <= lookup.reused_tokens <= answer.upper
    return "in_flight" if is_proven else "unexplained"
