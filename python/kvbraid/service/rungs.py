"""The hit ladder of one request: from its prompt down to what its engine reused, in tokens.

    prompt >= seen >= best >= chosen, and what was delivered

Invariant: the gaps between these rungs lead from the prompt to what was delivered without a rest,
and each has exactly one reason. All here are functions of a decision and of a report.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kvbraid.policy import Decision


class GapName(Enum):
    """A gap is named after its lower end; `above` leads up, to more than was expected."""

    SEEN = "seen"
    BEST = "best"
    CHOSEN = "chosen"
    DELIVERED = "delivered"
    ABOVE = "above"


class GapReason(Enum):
    """Why a rung is lower than the one before; docs/ladder.md says how sure each is."""

    NEVER_SEEN = "never_seen"
    FORGOTTEN = "forgotten"
    EVICTED = "evicted"
    STATE_MISSING = "state_missing"
    END_OF_PROMPT = "end_of_prompt"
    LEFT_OUT = "left_out"
    OTHER_POD_FOR_LOAD = "other_pod_for_load"
    EVENT_LAG = "event_lag"
    ENGINE_RECOMPUTED = "engine_recomputed"
    TOKENS_DIFFER = "tokens_differ"
    UNCERTAIN = "uncertain"
    NOT_REPORTED = "not_reported"
    UNKNOWN = "unknown"


class Gap(NamedTuple):
    """The tokens between two rungs, and why they are lost, or, for `above`, won."""

    name: GapName
    reason: GapReason
    tokens: int


class Delivery(NamedTuple):
    """What an engine reused; None: nobody said. `differs` if it counted another prompt."""

    tokens: int | None
    differs: bool = False


class Rungs(msgspec.Struct, frozen=True, kw_only=True):
    """What was known of one request when its rank was chosen, in tokens.

    `seen` is None where the index does not remember. `best` and `chosen` are what the best rank of
    the model and the chosen one were expected to reuse by their events; `lower` and `upper` bound
    the latter.

    The others are evidence for reasons. `candidates` is the best of those that might be chosen.
    `in_flight` is the best with what was on its way, and `resumable` the same of the chosen rank.
    `present` is the most that any rank held. `has_forgotten` says that not all is remembered.
    `is_raised` says that a rung was below the next one and was raised to it.
    """

    model: str
    prompt: int
    seen: int | None
    best: int
    chosen: int
    lower: int
    upper: int
    candidates: int
    in_flight: int
    resumable: int
    present: int
    has_forgotten: bool
    is_raised: bool


def rungs_of(decision: Decision) -> Rungs | None:
    """Read the rungs off a decision; None for an empty prompt.

    A rung may be below the next one, since what an index cannot follow it guesses. It is raised,
    and the request says so.
    """
    view, columns, remembered = decision.view, decision.columns, decision.seen
    prompt, chosen = len(view.request.token_ids), columns.expected[decision.row]
    if not prompt:
        return None
    best = max(columns.expected)
    is_whole = len(view) == len(columns.ranks)
    told = None if remembered is None else remembered.tokens
    seen = None if told is None else min(max(told, best), prompt)
    return Rungs(
        model=view.request.model,
        prompt=prompt,
        seen=seen,
        best=min(best, prompt),
        chosen=min(chosen, prompt),
        lower=decision.lower,
        upper=decision.upper,
        candidates=best if is_whole else _best_of(decision),
        in_flight=max(columns.expected_soon),
        resumable=decision.resumable,
        present=max(columns.present),
        has_forgotten=remembered is not None and remembered.num_forgotten > 0,
        is_raised=best > prompt or (told is not None and told < best),
    )


def _best_of(decision: Decision) -> int:
    """What the best candidate was expected to reuse, where not every rank was one."""
    candidates, columns = set(decision.view.ranks), decision.columns
    pairs = zip(columns.ranks, columns.expected, strict=True)
    return max(expected for rank, expected in pairs if rank in candidates)


def gaps_of(rungs: Rungs, delivery: Delivery) -> list[Gap]:
    """Return the gaps above 0 tokens, from the prompt down.

    The prompt less all gaps, but plus the gap `above`, is what was delivered, or 0 if nobody said.
    """
    delivered = _tokens(delivery)
    top = rungs.prompt if rungs.seen is None else rungs.seen
    gaps = []
    if rungs.prompt > top:
        gaps.append(Gap(GapName.SEEN, _why_not_seen(rungs), rungs.prompt - top))
    if top > rungs.best:
        gaps.append(Gap(GapName.BEST, _largest(_below_seen(rungs, top)), top - rungs.best))
    if rungs.best > rungs.chosen:
        gaps.append(Gap(GapName.CHOSEN, _largest(_below_best(rungs)), rungs.best - rungs.chosen))
    if rungs.chosen > delivered:
        reason = _first(_LOST, rungs, delivery)
        gaps.append(Gap(GapName.DELIVERED, reason, rungs.chosen - delivered))
    if delivered > rungs.chosen:
        reason = _first(_WON, rungs, delivery)
        gaps.append(Gap(GapName.ABOVE, reason, delivered - rungs.chosen))
    return gaps


_Part: TypeAlias = tuple[GapReason, int]


def _why_not_seen(rungs: Rungs) -> GapReason:
    return GapReason.FORGOTTEN if rungs.has_forgotten else GapReason.NEVER_SEEN


def _below_seen(rungs: Rungs, top: int) -> Sequence[_Part]:
    """What lies between what the best rank can reuse and what was ever there, from below."""
    coming = min(max(rungs.in_flight, rungs.best), top)
    held = min(max(rungs.present, coming), top)
    is_whole = rungs.present >= rungs.prompt
    return (
        (GapReason.EVENT_LAG, coming - rungs.best),
        (GapReason.END_OF_PROMPT if is_whole else GapReason.STATE_MISSING, held - coming),
        (GapReason.UNKNOWN if rungs.seen is None else GapReason.EVICTED, top - held),
    )


def _below_best(rungs: Rungs) -> Sequence[_Part]:
    return (
        (GapReason.LEFT_OUT, rungs.best - rungs.candidates),
        (GapReason.OTHER_POD_FOR_LOAD, rungs.candidates - rungs.chosen),
    )


def _largest(parts: Sequence[_Part]) -> GapReason:
    """A gap has the reason of its largest part; of equal ones, of the lowest."""
    reason, _ = max(parts, key=lambda part: part[1])
    return reason


_Test: TypeAlias = Callable[[Rungs, Delivery], bool]
_Rows: TypeAlias = Sequence[tuple[GapReason, _Test]]


def _tokens(delivery: Delivery) -> int:
    return delivery.tokens or 0


def _always(_: Rungs, __: Delivery) -> bool:
    return True


_LOST: Final[_Rows] = (
    (GapReason.TOKENS_DIFFER, lambda _, delivery: delivery.differs),
    (GapReason.NOT_REPORTED, lambda _, delivery: delivery.tokens is None),
    (GapReason.ENGINE_RECOMPUTED, lambda rungs, delivery: _tokens(delivery) < rungs.lower),
    (GapReason.UNCERTAIN, _always),
)
"""Why less was delivered than the chosen rank was expected to reuse: the first row that holds."""

_WON: Final[_Rows] = (
    (GapReason.TOKENS_DIFFER, lambda _, delivery: delivery.differs),
    (GapReason.EVENT_LAG, lambda rungs, delivery: _tokens(delivery) <= rungs.resumable),
    (GapReason.UNCERTAIN, lambda rungs, delivery: _tokens(delivery) <= rungs.upper),
    (GapReason.TOKENS_DIFFER, _always),
)
"""Why more was delivered: the first row that holds."""


def _first(rows: _Rows, rungs: Rungs, delivery: Delivery) -> GapReason:
    return next(reason for reason, holds in rows if holds(rungs, delivery))


REASONS: Final[Mapping[GapName, frozenset[GapReason]]] = {
    GapName.SEEN: frozenset({GapReason.NEVER_SEEN, GapReason.FORGOTTEN}),
    GapName.BEST: frozenset(
        {
            GapReason.EVENT_LAG,
            GapReason.STATE_MISSING,
            GapReason.END_OF_PROMPT,
            GapReason.EVICTED,
            GapReason.UNKNOWN,
        }
    ),
    GapName.CHOSEN: frozenset({GapReason.LEFT_OUT, GapReason.OTHER_POD_FOR_LOAD}),
    GapName.DELIVERED: frozenset(reason for reason, _ in _LOST),
    GapName.ABOVE: frozenset(reason for reason, _ in _WON),
}
"""Which reasons each gap can have."""
