"""What the index answers: scores, explanations, and what it knows about each pod.

Frozen data; every number is in tokens unless its name says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from kvbraid._native import FleetAnswer, FleetCore, FleetRoster
from kvbraid.ids import GroupId, PodId, PodState
from kvbraid.spec import SpecKind

Exactness: TypeAlias = Literal["exact", "bound", "unknown"]
"""`exact`: the engine reuses `lower` tokens, which equals `upper`. `bound`: the truth lies between
the two. `unknown`: the pod cannot be scored."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Reusable tokens: at least `lower`, at most `upper`."""

    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Limiting:
    """The group that ends the prefix, and the first boundary in tokens that it refuses.

    `group` is None (null in JSON) for a pod whose events carry no group index.
    """

    group: GroupId | None
    boundary: int


@dataclass(frozen=True, slots=True)
class PodScore:
    """What one rank of one pod could reuse of a request, in tokens; also a row of the HTTP answer.

    `expected` is the most likely value, for the same tiers as `lower` and `upper`. It lies between
    them, equals both where they meet, and promises nothing where they do not.

    `score` ranks pods. It is the likely number over all tiers, whichever were requested, with each
    token weighted by its tier.

    Only `score` depends on the strategy. `weighted_blocks` cannot score a pod about which too
    little is known (it is not registered, or no event has told its groups): `score` is then 0 and
    `exactness` is `unknown`.
    """

    pod: PodId
    dp_rank: int
    state: PodState
    lower: int
    upper: int
    expected: int
    exactness: Exactness
    present: int
    tiers: dict[str, Bounds]
    limiting: Limiting | None
    score: float


class _Body(msgspec.Struct):
    """The fields of the native core's JSON that are read here."""

    pods: list[PodScore]


_DECODER: Final = msgspec.json.Decoder(_Body)


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of an answer in tokens, a column each, without an object per row.

    `lower`, `upper`, `expected` and `present` are those of `PodScore`. The others count what was
    promised as well (`FleetIndex.promise`). `soon` is at least `upper`, and no bound.
    `expected_soon` is at least `expected`, and what a cost is computed from. `present_soon` is at
    least `present`.
    """

    ranks: Sequence[tuple[PodId, int]]
    states: Sequence[PodState]
    lower: Sequence[int]
    upper: Sequence[int]
    expected: Sequence[int]
    present: Sequence[int]
    soon: Sequence[int]
    expected_soon: Sequence[int]
    present_soon: Sequence[int]


_STATES: Final = tuple(PodState)


@lru_cache(maxsize=16)
def _ranks(roster: FleetRoster) -> tuple[tuple[PodId, int], ...]:
    """Return the ranks of a model, which are the same until one of its pods comes or goes."""
    return tuple(cast("list[tuple[PodId, int]]", roster.ranks()))


@lru_cache(maxsize=16)
def _states(told: bytes) -> tuple[PodState, ...]:
    return tuple(_STATES[state] for state in told)


class Seen(NamedTuple):
    """How much of a request was ever shown, in `tokens`, as far as the index remembers.

    `num_remembered` boundaries of all models are in the table; a rank may name some of them again.
    `num_forgotten` were forgotten, the oldest first, each counted as often as it was. While none
    was, what is beyond `tokens` was never shown.
    """

    tokens: int
    num_remembered: int
    num_forgotten: int


class Scores:
    """One scored request, with a row for every rank asked for. Reading `rows` builds them.

    It keeps the request's ids until it is dropped. `seen` is that of `FleetIndex.seen`, if the
    call asked for it, as of the same moment; else None.
    """

    def __init__(self, native: FleetAnswer, core: FleetCore) -> None:
        self._native = native
        self._core = core
        told = native.seen()
        self.seen = None if told is None else Seen._make(told)

    @property
    def rows(self) -> list[PodScore]:
        """One row per rank, in the order of pod names."""
        return _DECODER.decode(self._native.to_json()).pods

    def columns(self) -> Columns:
        """Return the numbers of all rows, in their order, and what was promised."""
        native = self._native
        numbers = [memoryview(column).cast("I") for column in native.columns()]
        lower, upper, expected, present, soon, expected_soon, present_soon = numbers
        return Columns(
            ranks=_ranks(native.roster()),
            states=_states(native.states()),
            lower=lower,
            upper=upper,
            expected=expected,
            present=present,
            soon=soon,
            expected_soon=expected_soon,
            present_soon=present_soon,
        )

    def promise(
        self,
        pod: PodId,
        *,
        dp_rank: int = 0,
        junction: int = 0,
        sparse_windows: bool | None = None,
    ) -> int:
        """Promise the request to a rank, as `FleetIndex.promise`, without hashing it again.

        Raises:
            UnknownError: The pod or rank is not registered any longer.
        """
        rank = (pod, dp_rank)
        return self._core.promise_answered(rank, self._native, junction, sparse_windows)

    def to_json(self) -> bytes:
        """Return the body of a `/v1/score` answer: the same rows, as JSON."""
        return self._native.to_json()

    def __len__(self) -> int:
        return len(self._native)


class KnownGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group as configured, or as learned from events.

    `held` counts its blocks that are certainly held and have a place, by tier.
    """

    group: GroupId | None
    kind: SpecKind
    block_size: int
    window: int | None
    chunk: int | None
    eagle: bool
    held: dict[str, int]


class GroupStrip(msgspec.Struct, frozen=True, kw_only=True):
    """What one group holds along a request, and what it accepts.

    `held[j]` says whether the block that ends at token `(j + 1) * block_size` is held. `accepted`
    lists the boundaries above 0 that the group accepts; it is None for a group that never
    restricts a prefix.
    """

    group: GroupId | None
    kind: SpecKind
    block_size: int
    window: int | None
    held: Sequence[bool]
    accepted: Sequence[int] | None


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons for one rank's answer."""

    pod: PodId
    dp_rank: int
    state: PodState
    lower: int
    upper: int
    limiting: Limiting | None
    reason: str
    groups: Sequence[GroupStrip]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One explained request: a row for every rank asked for."""

    rows: Sequence[PodExplanation]


class PodInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the index knows about one rank.

    `placed` counts the hashes in the rank's events by how their places were found (`tokens`,
    `join`, `query`) and those still without a place (`unplaced`). `refused` counts refusals and
    notes by reason. `hash_function` says how far the engine's hash function is trusted.
    `memory_bytes` is what the index holds for this rank alone, by capacity.
    """

    pod: PodId
    dp_rank: int
    model: str
    state: PodState
    reason: str
    messages: int
    groups: Sequence[KnownGroup]
    placed: dict[str, int]
    refused: dict[str, int]
    hash_function: str
    num_blocks: int
    memory_bytes: int


class Applied(NamedTuple):
    """What one batch did: hashes stored, copies removed, clears, events refused."""

    stored: int
    removed: int
    cleared: int
    refused: int
