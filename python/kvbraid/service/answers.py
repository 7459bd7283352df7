"""The JSON bodies of every answer, as structs: the OpenAPI document is generated from them.

The native core writes `/v1/score` in the form of ScoreAnswer, whose rows are the index's own; the
other answers are converted from the index's rows by attribute name.
"""

from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

from kvbraid.fleet.answer import (
    GroupStrip,
    KnownGroup,
    Limiting,
    PodExplanation,
    PodInfo,
    PodScore,
)
from kvbraid.ids import GroupId, PodState
from kvbraid.policy.decision import Knowledge, Origin
from kvbraid.service.journal import Problem
from kvbraid.service.rungs import GapName, GapReason
from kvbraid.spec import SpecKind


class ScoreAnswer(msgspec.Struct, frozen=True):
    """Answer of POST /v1/score: a row for every registered rank of the model."""

    model: str
    num_tokens: int
    pods: list[PodScore]


class Coverage(Enum):
    """How much of the blocks that a cell overlaps is held."""

    HELD = "held"
    PARTLY = "partly"
    MISSING = "missing"


class Strip(NamedTuple):
    """One group: its cells, and those that end at a boundary which it accepts; None: every one."""

    cells: list[Coverage]
    accepted: set[int] | None


class Strips(NamedTuple):
    """An explanation to be drawn, whatever draws it.

    Cell c stands for the tokens from c * unit to (c + 1) * unit. `lower` and `upper` are the cells
    in which the answer's bounds end, -1 for a bound of 0.
    """

    unit: int
    groups: list[Strip]
    lower: int
    upper: int


class ExplainGroup(GroupStrip, frozen=True, kw_only=True):
    """One group: block j ends at token (j + 1) * block_size; `accepted` are boundaries above 0.

    `accepted` is null for a group that never restricts a prefix.
    """

    def strip(self, num_tokens: int, unit: int) -> Strip:
        """Return the group in cells of `unit` tokens."""
        cells = [self._cell(first, first + unit) for first in range(0, max(num_tokens, 1), unit)]
        if self.accepted is None:
            return Strip(cells, None)
        return Strip(cells, {(end - 1) // unit for end in self.accepted if end > 0})

    def _cell(self, first_token: int, end_token: int) -> Coverage:
        blocks = slice(first_token // self.block_size, -(-end_token // self.block_size))
        held = self.held[blocks]
        return (
            Coverage.MISSING if not any(held) else Coverage.HELD if all(held) else Coverage.PARTLY
        )


class ExplainRow(PodExplanation, frozen=True, kw_only=True):
    """The reasons for the answer of one pod and rank."""

    groups: list[ExplainGroup]

    def strips(self, num_tokens: int, *, most_cells: int) -> Strips:
        """Return at most `most_cells` cells per group, of the smallest block or of several."""
        block = min((group.block_size for group in self.groups), default=1)
        unit = block * max(1, -(-num_tokens // (block * most_cells)))
        strips = [group.strip(num_tokens, unit) for group in self.groups]
        return Strips(unit, strips, (self.lower - 1) // unit, (self.upper - 1) // unit)


class ExplainAnswer(msgspec.Struct, frozen=True):
    """Answer of POST /v1/explain."""

    model: str
    num_tokens: int
    pods: list[ExplainRow]


class MissingBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """What one group lacks at a boundary, in tokens: it would accept it with these blocks.

    `spans` are the first of their runs, each from a token and to a token.
    """

    group: GroupId | None
    boundary: int
    num_blocks: int
    spans: list[tuple[int, int]]


class DrawnGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group as a strip: a character per cell, `#` all held, `+` some of it, `.` nothing.

    `num_held` counts blocks. `accepted` are the cells in which a boundary ends that the group
    accepts; null for a group that never restricts a prefix.
    """

    group: GroupId | None
    kind: SpecKind
    block_size: int
    window: int | None
    num_held: int
    cells: str
    accepted: list[int] | None


class DrawnRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod and rank: cell c stands for the tokens from c * unit to (c + 1) * unit.

    `common` are the cells with a boundary that all its groups accept; null if none restricts any.
    `missing` is what the limiting group lacks.
    """

    pod: str
    dp_rank: int
    state: PodState
    lower: int
    upper: int
    limiting: Limiting | None
    reason: str
    unit: int
    groups: list[DrawnGroup]
    common: list[int] | None
    missing: MissingBlocks | None


class StripsAnswer(msgspec.Struct, frozen=True):
    """Answer of POST and GET /v1/strips: an explanation to be drawn."""

    model: str
    num_tokens: int
    pods: list[DrawnRow]


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/tokens: the token ids of a prompt, as those of a request are made."""

    model: str
    num_tokens: int
    token_ids: list[int]


class Group(KnownGroup, frozen=True, kw_only=True):
    """One group as configured, or as learned from events; sizes in tokens."""


class IndexRow(PodInfo, frozen=True, kw_only=True):
    """What the index knows about one pod and rank.

    `placed` counts entries by the means that placed them, and those without a place;
    `hash_function` says how far the engine's hash function is trusted.
    """

    groups: list[Group]


class FeedRow(msgspec.Struct, frozen=True):
    """How far the subscriber has followed one pod and rank, and how completely.

    `is_rebuilt` says that its first rebuild has ended, however it stands now. `applied_at` is when
    its last batch was applied, by the server's clock, and `lag_s` how old it was then.
    """

    pod: str
    dp_rank: int
    last_seq: int | None
    state: PodState
    is_rebuilt: bool
    applied_at: float | None = None
    lag_s: float | None = None


class EngineLoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of one rank: requests in its steps, before them, and its pool's use.

    `usage` is a share from 0 to 1.
    """

    running: int
    waiting: int
    usage: float


class PodRow(IndexRow, frozen=True, kw_only=True):
    """One pod and rank in GET /v1/pods; `last_seq` is null before the first message.

    `remedy` says what to do about messages that are lost; it is empty if none are missing.
    `running` are the requests that `/v1/pick` has sent there and nobody has reported as ended;
    `waiting` are those of them without a first token. `engine_load` is what its engine says of all
    requests, if it is asked. By the server's clock, `applied_s` is when the last batch of its
    events was applied, and `state_s` when its state changed; `problem` is the last warning.
    `lag_s` is how many seconds before `applied_s` the engine had made that batch, by the clocks of
    both machines: null if it does not say. `num_gpu_blocks` is the size of its pool, and
    `block_bytes` that of a block there, if given.
    """

    last_seq: int | None
    endpoint: str | None
    replay_endpoint: str | None
    bind: bool | None
    remedy: str = ""
    url: str | None = None
    drain: bool = False
    max_running: int | None = None
    running: int = 0
    waiting: int = 0
    engine_load: EngineLoadRow | None = None
    applied_s: float | None = None
    lag_s: float | None = None
    state_s: float | None = None
    problem: Problem | None = None
    num_gpu_blocks: int | None = None
    block_bytes: int | None = None


class PodsAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/pods; `now_s` is the server's clock, `memory_bytes` the whole index."""

    pods: list[PodRow]
    now_s: float = 0.0
    memory_bytes: int = 0


class PodChange(msgspec.Struct, frozen=True):
    """Answer of PUT (created, unchanged, changed, replaced), DELETE (removed), routed (noted)."""

    pod: str
    status: str


class RefusedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was refused: when, in seconds since 1970, and the line that says why."""

    at: float
    error: str


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key that counts; `last_used` is in seconds since 1970, and null before the first use."""

    name: str
    rights: list[str]
    last_used: float | None


class ConfigAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/config: what counts since when, and what of the file does not count yet.

    `config` has the tables of the file with all defaults; secrets are masked. `waiting` are keys
    that count at the next start. `refused` is the last file, if nothing of it counts.
    """

    file: str | None
    since: float
    waiting: list[str]
    refused: RefusedConfig | None
    keys: list[KeyRow]
    config: dict[str, Any]


class CostTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one candidate's cost, in seconds; their sum is the cost."""

    wait: float
    others: float
    prefill: float
    loading: float
    decoding: float
    potential: float
    displacement: float
    queue: float


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """A rank to try next. `cost` is null if the policy would never have sent the request there."""

    pod: str
    dp_rank: int
    url: str | None
    cost: float | None


class PickCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that could have been chosen; `resumable` and `present` as in the whole answer.

    `running` are its requests in flight, `waiting` those of them without a first token. `terms` is
    null with a policy that has none.
    """

    pod: str
    dp_rank: int
    resumable: int
    present: int
    running: int
    waiting: int
    cost: float | None
    terms: CostTerms | None


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients that are fitted, in seconds; with 0 samples they are what was expected."""

    num_samples: int
    fixed: float
    per_token: float
    per_pair: float


class PickAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/pick.

    `pick` names the booking. `lower` and `upper` bound what the rank can reuse now. `resumable` is
    what it will probably reuse when the request gets there, with what is in flight. `knowledge` is
    `events`, or `promises` where the rank's cache is guessed from what it was sent. `seconds` says
    whether the model's coefficients were `given`, are the `default`, or were `fitted`; `fit` is
    null unless they are to be. `lifted` are filters that would have left nobody; `left_out` counts
    the ranks that each of the others left out.
    """

    pick: str
    model: str
    num_tokens: int
    pod: str
    dp_rank: int
    url: str | None
    state: PodState
    lower: int
    upper: int
    resumable: int
    present: int
    cost: float | None
    terms: CostTerms | None
    policy: str
    knowledge: Knowledge
    seconds: Origin
    fit: FitAnswer | None = None
    lifted: list[str]
    left_out: dict[str, int]
    fallbacks: list[Fallback]
    candidates: list[PickCandidate] | None


class RungTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The rungs of the ladder, in tokens: of one request, or the sums of several.

    `seen` is null where the index does not remember what was ever there; `delivered` is null where
    nobody has reported it.
    """

    prompt: int
    seen: int | None
    best: int
    chosen: int
    lower: int
    upper: int
    delivered: int | None


class GapRow(msgspec.Struct, frozen=True, kw_only=True):
    """By how many tokens a rung is lower than the one before, or, with `above`, higher."""

    gap: GapName
    reason: GapReason
    tokens: int


class RequestLadder(msgspec.Struct, frozen=True, kw_only=True):
    """The rungs of one request, and each gap above 0 tokens."""

    rungs: RungTokens
    gaps: list[GapRow]


class PickedAnswer(msgspec.Struct, frozen=True):
    """Answer of POST /v1/picked: `noted`, or `unknown` if the pick has no booking (any more).

    `ladder` is that of a request whose end was noted, unless its prompt is empty.
    """

    pick: str
    status: Literal["noted", "unknown"]
    ladder: RequestLadder | None = None


class ModelLadder(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one model: over requests that have `ended`.

    Of these, the reuse of `reported` requests is known, and a rung of `raised` ones was below the
    next one and was raised to it.
    """

    model: str
    ended: int
    reported: int
    raised: int
    rungs: RungTokens
    gaps: list[GapRow]


class LadderAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/ladder: sums since the server's start, sorted by model."""

    models: list[ModelLadder]


class LadderInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The sums in tokens of one model, over the requests that ended in one interval."""

    model: str
    begin_s: float
    ended: int
    reported: int
    prompt: int
    delivered: int
    gaps: list[GapRow]


class LadderHistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/ladder/history: intervals of `interval_s`, the oldest first.

    All times are of the server's clock, which now shows `now_s`.
    """

    now_s: float
    interval_s: float
    intervals: list[LadderInterval]


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of the last requests: why its rank was chosen, and what has become of it.

    `runner_up` is the rank that costs least after the chosen one; null if there was no other.
    `delivered` and `ladder` are there once its end is reported. `decided_s` and `changed_s` are of
    the server's clock. `has_prompt` says that GET /v1/strips can explain it.
    """

    request: str
    decided_s: float
    changed_s: float
    model: str
    num_tokens: int
    chosen: PickCandidate
    runner_up: PickCandidate | None
    num_candidates: int
    state: PodState
    lower: int
    upper: int
    policy: str
    knowledge: Knowledge
    seconds: Origin
    lifted: list[str]
    left_out: dict[str, int]
    has_prompt: bool
    status: Literal["decided", "started", "ended", "failed"] = "decided"
    delivered: int | None = None
    ladder: RequestLadder | None = None


class RequestsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/requests: the last change first; `now_s` is the server's clock."""

    now_s: float
    keeps_prompts: bool
    requests: list[RecentRequest]


class ModelsAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/models: models with at least one registered pod, sorted."""

    models: list[str]


class StatusAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of GET /healthz and GET /readyz; `detail` says what works less well than it could."""

    status: str
    detail: str = ""


class ErrorBody(msgspec.Struct, frozen=True):
    """A code of the table in docs/api.md, what was wrong, and what to do about it."""

    code: str
    message: str
    remedy: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every refusal."""

    error: ErrorBody
