"""The answers of several shards as that of one index.

Invariant: every rank of a pod that is asked for has a row, in the order of names. Where the pod's
shard tells of it, the row is the shard's own; where it does not, everything is possible, and the
row is a bound. A shard is believed about its own pods alone. There is no I/O here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from kvbraid.fleet import Bounds, Columns, PodScore
from kvbraid.fleet.answer import Seen
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.policy.view import RankId
from kvbraid.service.answers import ExplainAnswer, ExplainRow, PodRow, PodsAnswer
from kvbraid.service.shards.kept import Kept
from kvbraid.service.shards.messages import (
    NUMBERS,
    ROW_BYTES,
    ShardRows,
    WrongAnswerError,
    numbers_of,
    read_roster,
    roster_bytes,
)

UNKNOWN: Final = PodState.DEGRADED
"""The state of a rank whose shard does not tell of it: its engine may be well, unlike STALE."""

_Row = TypeVar("_Row")
Rows: TypeAlias = Mapping[RankId, _Row]
"""The rows of one shard's answer."""

_POSSIBLE: Final = frozenset({"upper", "soon"})
"""The columns that are not 0 in a row of which nothing is known: all tokens may be there."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The pods that are asked about, each with its number of ranks, by the number of their shard.

    It is the same object until one of the pods comes or goes: plans are kept by it.
    """

    pods: Mapping[int, Mapping[PodId, int]] = field(default_factory=dict)


class _Plan(NamedTuple):
    """How rows become those of one answer: picked from all shards' rows in a line.

    `pick` takes one of a sequence for each row, and `pick_rows` the bytes of a row.
    The place after the last row stands for a row of which nothing is known; `lacking` counts the
    ranks that have it, by the number of their shard.
    """

    ranks: tuple[RankId, ...]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    pick_rows: Callable[[bytes], tuple[bytes, ...]]
    lacking: Mapping[int, int]


_PlanKey: TypeAlias = tuple[Asked, tuple[tuple[int, bytes], ...]]
"""The pods that are asked about, and what shards say of their ranks, by their numbers."""


class Merged(NamedTuple):
    """Columns as those of one index; of `lacking` rows of a shard it has told nothing."""

    columns: Columns
    seen: Seen | None
    lacking: Mapping[int, int]


def _plan(key: _PlanKey) -> _Plan:
    asked, rosters = key
    places: dict[RankId, int] = {}
    place = 0
    for number, roster in rosters:
        known = asked.pods.get(number, {})
        for rank in read_roster(roster).ranks:
            if rank[0] in known:
                places[rank] = place
            place += 1
    lacking = {
        number: sum(rank not in places for rank in _ranks(pods))
        for number, pods in asked.pods.items()
    }
    unknown = (rank for pods in asked.pods.values() for rank in _ranks(pods))
    places = dict.fromkeys(unknown, place) | places
    names = tuple(sorted(places))
    order = [places[rank] for rank in names]
    rows = [slice(ROW_BYTES * row, ROW_BYTES * (row + 1)) for row in order]
    return _Plan(names, _picking(order), _picking(rows), lacking)


def _plan_bytes(key: _PlanKey, plan: _Plan) -> int:
    rosters = b"".join(roster for _, roster in key[1])
    return 4096 + 2 * roster_bytes(rosters, len(plan.ranks))


plan_for: Final = Kept(_plan, _plan_bytes)


def merge(asked: Asked, told: Mapping[int, ShardRows], num_tokens: int) -> Merged:
    """Merge rows of shards, by their numbers, about so many tokens.

    Whole rows are moved, and no object is made of a number.
    """
    shards = sorted(told)
    plan = plan_for((asked, tuple((number, told[number].roster) for number in shards)))
    tellers = [told[number] for number in shards]
    states = chain.from_iterable(teller.states for teller in tellers)
    rows = b"".join([*(teller.rows for teller in tellers), _unknown_row(num_tokens)])
    numbers = numbers_of(b"".join(plan.pick_rows(rows)))
    columns = {name: numbers[at :: len(NUMBERS)] for at, name in enumerate(NUMBERS)}
    return Merged(
        Columns(ranks=plan.ranks, states=plan.pick([*states, UNKNOWN]), **columns),
        _seen([teller.seen for teller in tellers], is_whole=set(shards) >= set(asked.pods)),
        plan.lacking,
    )


@lru_cache(maxsize=16)
def _unknown_row(num_tokens: int) -> bytes:
    possible = num_tokens.to_bytes(4, "little")
    return b"".join(possible if name in _POSSIBLE else bytes(4) for name in NUMBERS)


def _picking(order: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    if len(order) > 1:
        return itemgetter(*order)
    return lambda line: tuple(line[place] for place in order)


def _seen(told: Iterable[Seen | None], *, is_whole: bool) -> Seen | None:
    """Return what was ever there anywhere; where a shard is missing, something is forgotten."""
    known = [each for each in told if each is not None]
    if not known:
        return None
    return Seen(
        max(each.tokens for each in known),
        sum(each.num_remembered for each in known),
        sum(each.num_forgotten for each in known) + (not is_whole),
    )


class _RowName(msgspec.Struct):
    pod: PodId
    dp_rank: int


class _ScoreRows(msgspec.Struct):
    pods: list[msgspec.Raw]


_ROWS: Final = msgspec.json.Decoder(_ScoreRows)
_ROW_NAME: Final = msgspec.json.Decoder(_RowName)
_REASONS: Final = msgspec.json.Decoder(ExplainAnswer)
_PODS: Final = msgspec.json.Decoder(PodsAnswer)

_KNOWN_TO_FRONTS: Final = (
    "model", "url", "drain", "max_running", "running", "waiting", "engine_load",
)  # fmt: skip
"""The fields of a pod that a front knows itself: what it may send there, and what it has sent."""


def read_pods(body: bytes) -> PodsAnswer:
    """Read the body of a GET /v1/pods answer.

    Raises:
        MsgspecError: It is none.
    """
    return _PODS.decode(body)


def merge_pods(
    own: PodsAnswer,
    told: Mapping[int, PodsAnswer],
    shard_of: Callable[[str], int],
    unknown: Callable[[int], str],
) -> list[PodRow]:
    """Merge a front's rows of pods with those of shards, by their numbers.

    A row of which its shard tells nothing says why: `unknown`.
    """
    known = {
        (row.pod, row.dp_rank, number): row for number, each in told.items() for row in each.pods
    }
    rows = []
    for row in own.pods:
        number = shard_of(row.pod)
        found = known.get((row.pod, row.dp_rank, number))
        if found is None:
            rows.append(replace(row, state=UNKNOWN, reason=unknown(number)))
        else:
            # Rounded: a row shall not change because an answer has taken a little longer.
            gap_s = round(own.now_s - told[number].now_s, 1)
            rows.append(_merged_pod(row, found, gap_s))
    return rows


def _merged_pod(own: PodRow, told: PodRow, gap_s: float) -> PodRow:
    """Return a shard's row, with what the front knows itself, and times by the front's clock."""
    known = {name: getattr(own, name) for name in _KNOWN_TO_FRONTS}
    times = {name: getattr(told, name) for name in ("applied_s", "state_s")}
    later = {name: at_s if at_s is None else at_s + gap_s for name, at_s in times.items()}
    problem = told.problem and replace(told.problem, at_s=told.problem.at_s + gap_s)
    return replace(told, problem=problem, **later, **known)


def read_rows(body: bytes) -> Rows[msgspec.Raw]:
    """Read the body of a /v1/score answer; its rows stay as they are.

    Raises:
        MsgspecError: It is none.
    """
    named = ((_ROW_NAME.decode(row), row) for row in _ROWS.decode(body).pods)
    return {(name.pod, name.dp_rank): row for name, row in named}


def read_reasons(num_tokens: int, body: bytes) -> Rows[ExplainRow]:
    """Read the body of a /v1/explain answer about so many tokens.

    Raises:
        MsgspecError: It is none.
        WrongAnswerError: A number in it is impossible.
    """
    rows = _REASONS.decode(body).pods
    for row in rows:
        boundary = 0 if row.limiting is None else row.limiting.boundary
        sizes = [group.block_size for group in row.groups]
        if not 0 <= row.lower <= row.upper <= num_tokens >= boundary or min(sizes, default=1) < 1:
            raise WrongAnswerError(f"impossible numbers of rank {row.dp_rank} of {row.pod}")
    return {(row.pod, row.dp_rank): row for row in rows}


def merge_rows(
    asked: Asked, told: Mapping[int, Rows[_Row]], unknown: Callable[[int, RankId], _Row]
) -> list[_Row]:
    """Merge rows of shards, by their numbers; `unknown` makes one of a shard that is missing."""
    rows: dict[RankId, _Row] = {}
    for number, pods in asked.pods.items():
        own = told.get(number, {})
        rows |= {rank: unknown(number, rank) for rank in _ranks(pods) if rank not in own}
        rows |= {rank: row for rank, row in own.items() if rank[0] in pods}
    return [rows[rank] for rank in sorted(rows)]


def _ranks(pods: Mapping[PodId, int]) -> Iterator[RankId]:
    return ((pod, rank) for pod, dp_size in pods.items() for rank in range(dp_size))


def unknown_score(rank: RankId, num_tokens: int) -> msgspec.Raw:
    """Return a row of which nothing is known: everything is possible."""
    row = PodScore(
        pod=rank[0],
        dp_rank=rank[1],
        state=UNKNOWN,
        lower=0,
        upper=num_tokens,
        expected=0,
        exactness="bound",
        present=0,
        tiers={Tier.GPU.value: Bounds(0, num_tokens)},
        limiting=None,
        score=0.0,
    )
    return msgspec.Raw(msgspec.json.encode(row))


def unknown_reasons(rank: RankId, num_tokens: int, why: str) -> ExplainRow:
    """Return what explains such a row: why its shard tells nothing."""
    return ExplainRow(
        pod=rank[0],
        dp_rank=rank[1],
        state=UNKNOWN,
        lower=0,
        upper=num_tokens,
        limiting=None,
        reason=why,
        groups=[],
    )
