"""The index of a fleet: event bytes in, scores and explanations out.

Invariant: an answer never guesses. Where neither the events nor (if its hash function is known)
the engine's own hash chain decides, the answer is a bound. Nothing here does I/O. Only the number
of batches that `apply_many` takes at once depends on a clock. A feed tells how complete a history
is. Thread-safe; every call that does work releases the interpreter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from kvbraid._native import FleetCore
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError
from kvbraid.fleet import awaiting
from kvbraid.fleet.answer import (
    Applied,
    Explanation,
    GroupStrip,
    KnownGroup,
    PodExplanation,
    PodInfo,
    Scores,
    Seen,
)
from kvbraid.fleet.fields import listed, refuse_payloads, refuse_request
from kvbraid.fleet.registration import NOT_TAKEN, PodRegistration, pass_to_core
from kvbraid.fleet.request import Request
from kvbraid.fleet.weights import TIER_WEIGHTS, check_weights
from kvbraid.ids import GroupId, PodId, PodState, Tier
from kvbraid.reading import OFFSET, POSITIVE, check, whole
from kvbraid.spec import SpecKind, Topology

if TYPE_CHECKING:
    from kvbraid._native import _InfoTuple

Keys: TypeAlias = Literal["auto", "join"]
"""Whether engines' hash functions may be used, or hashes are placed by tokens and joins only."""

Presence: TypeAlias = Literal["count", "set", "full-only"]
"""How copies count. All values except `count` are shortcuts; they exist to show their errors."""

_VLLM: Final = EngineProfile()

MOST_RANKS: Final = 1 << 20
"""The largest number of ranks that an index can have."""

SECRET_BYTES: Final = 32
"""The length of the secret that is mixed into keys and hash tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """How an index works, fixed for its life.

    Above `memory_limit_bytes` (None: no limit) the pod that holds most forgets its least recently
    matched blocks, and its answers become bounds. `limbo_limit_bytes` limits the memory of one
    rank's undecided hashes, and `promise_limit_bytes` that of all promises together: above it the
    oldest is withdrawn, and its rank counts `promises_over_limit`. `seen_limit_bytes` is what the
    table of `seen` takes: at most a sixteenth of `memory_limit_bytes`, and nothing if it is 0.

    `tier_weights` has what a token on a tier is worth in `score`, from 0 to 1 000 000; a tier that
    is left out keeps its default, and a request may set its own. The `weighted_blocks` strategy
    counts in blocks of `canonical_block_size` tokens; no engine needs to have this block size.
    `max_ranks` limits the ranks of all pods together: a registration that would exceed it is
    refused, and so is a further rank that a payload names. `secret` is mixed into keys and hash
    tables. None draws it at random; every index to which strangers can send prompts needs this. A
    fixed secret of 32 bytes makes a test repeatable.
    """

    keys: Keys = "auto"
    presence: Presence = "count"
    memory_limit_bytes: int | None = None
    limbo_limit_bytes: int = 64 << 20
    promise_limit_bytes: int = 64 << 20
    seen_limit_bytes: int = 32 << 20
    tier_weights: Mapping[Tier, float] | None = None
    canonical_block_size: int = 16
    max_ranks: int = 65_536
    secret: bytes | None = field(default=None, repr=False)

    narrows: ClassVar[bool] = True
    """No option: `make study ONLY=narrowing` alone turns this off, in a class of its own."""

    def __post_init__(self) -> None:
        """Refuse options that no index can work with."""
        check("max_ranks", self.max_ranks, whole(1, MOST_RANKS))
        if self.secret is not None and len(self.secret) != SECRET_BYTES:
            msg = f"secret has {len(self.secret)} bytes; it must have {SECRET_BYTES}, or be None"
            raise InvalidValueError(msg)
        check("seen_limit_bytes", self.seen_limit_bytes, OFFSET)
        check("canonical_block_size", self.canonical_block_size, POSITIVE)
        check_weights(self.tier_weights)

    @property
    def weights(self) -> list[float]:
        """The weight of a token on each tier, in the order of `Tier`."""
        weights = {**TIER_WEIGHTS, **(self.tier_weights or {})}
        return [weights[tier] for tier in Tier]


class FleetIndex:
    """Knows what every pod holds, from the pods' own events, and what a request can reuse.

    Attributes:
        memory_limit_bytes: What `memory_bytes` is kept under; None: no limit.
    """

    def __init__(self, options: IndexOptions | None = None) -> None:
        check("options", options, IndexOptions | None)
        options = options or IndexOptions()
        self.memory_limit_bytes = options.memory_limit_bytes
        self._core = FleetCore(options)
        self._ranks: dict[PodId, int] = {}  # Of the pods registered.

    def register(
        self,
        pod: PodId,
        *,
        model: str,
        dp_size: int = 1,
        topology: Topology | None = None,
        engine: EngineProfile = _VLLM,
        loras: Mapping[str, str] | None = None,
    ) -> None:
        """Make a pod known. Repeating the call changes nothing; other arguments reset the pod.

        Without a topology the groups are learned from events. `engine` is by default vLLM with an
        unknown hash function.

        Raises:
            InvalidValueError: No engine can have the topology, or there is not even one rank.
        """
        check(f"dp_size of pod {pod!r}", dp_size, POSITIVE)
        known = topology or Topology(groups=())
        registration = PodRegistration(model, dp_size, known, engine, dict(loras or {}))
        pass_to_core(registration, partial(self._core.register, pod))
        self._ranks[pod] = dp_size

    def remove(self, pod: PodId) -> None:
        """Forget a pod, all of its ranks, and all they hold.

        Raises:
            UnknownError: The pod is not registered.
        """
        self._core.remove(pod)
        self._ranks.pop(pod, None)

    def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
        """Take in one published batch (the payload frame). Bad bytes are refused and counted.

        Raises:
            UnknownError: The pod is not registered.
            InvalidValueError: The payload is no bytes.
        """
        try:
            return Applied._make(self._core.apply(pod, dp_rank, payload))
        except NOT_TAKEN:
            check("payload", payload, bytes)
            raise

    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> list[Applied]:
        """Apply payloads in order, as `apply` does: at least one, then more until time is up.

        Returns one row per applied batch. The caller passes the other payloads again in a later
        call; other work can run in between.

        Raises:
            UnknownError: The pod is not registered.
            InvalidValueError: `payloads` is no list of bytes.
        """
        try:
            done = self._core.apply_many(pod, dp_rank, payloads, round(budget_s * 1e6))
        except NOT_TAKEN:
            refuse_payloads(payloads)
            raise
        return list(map(Applied._make, done))

    def save(self, pod: PodId, *, note: str = "") -> bytes:
        """Return what is known of a pod as bytes, with a note that `load` gives back.

        Not in it: promises, what was `seen` before, and when blocks were last matched.

        Raises:
            UnknownError: The pod is not registered.
        """
        return self._core.save(pod, note)

    def load(self, pod: PodId, saved: bytes) -> str:
        """Replace what is known of a pod by what was saved of it, and return the note.

        The index must have the secret of the one that saved, and the pod must be registered in
        the same way; and its state is the saved one until a feed says more.

        Raises:
            UnknownError: The pod is not registered.
            SnapshotError: The bytes are not a whole snapshot of this pod; nothing has changed.
        """
        return self._core.load(pod, saved)

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Note that a rank's engine restarted: its GPU tier is empty, other tiers are in doubt."""
        self._core.reset(pod, dp_rank)

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Note that messages of a rank are lost for good: what it held is no longer known."""
        self._core.lose(pod, dp_rank)

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Note how far the feed knows a rank's history. Only in EXACT can an answer be exact.

        Raises:
            UnknownError: The pod is not registered.
            InvalidValueError: `state` is not a `PodState`.
        """
        check("state", state, PodState)
        self._core.set_state(pod, dp_rank, state.value, reason)

    def note_refused(self, pod: PodId, reason: str, *, dp_rank: int = 0) -> None:
        """Count a refusal that the feed saw (a malformed frame, a topic of another pod)."""
        self._core.note_refused(pod, dp_rank, reason)

    def routed(
        self, pod: PodId, request: Request, produced: Sequence[int], *, dp_rank: int = 0
    ) -> None:
        """Note that a request was sent to a pod, and that these tokens came back.

        This only improves the expected value of pods with windows or states of which no event
        tells (SGLang): what such an engine keeps follows from what it was asked. Call it when the
        answer has come back, for all requests that the pod gets or for none of them: from the
        first call on, stores count only as far as a request explains them. A request waits for its
        pages until the next one comes. No bound counts on any; only the first 131 072 pages are
        followed (`long_silent_walk`). A pod with a host tier takes no notice.

        Raises:
            UnknownError: The pod or rank is not registered, or serves another model.
            InvalidValueError: A token id does not exist.
        """
        try:
            self._core.routed(pod, dp_rank, request, request.token_ids, produced)
        except NOT_TAKEN:
            refuse_request(request)
            raise

    def promise(
        self,
        pod: PodId,
        request: Request,
        *,
        dp_rank: int = 0,
        junction: int = 0,
        sparse_windows: bool | None = None,
    ) -> int:
        """Note that a request is being sent to a rank, before any event can tell; return a number.

        Until then, `Scores.columns` has what the rank will soon be able to reuse. No other answer
        changes: bounds, `exact` and `expected` say what events have shown. A promise ends when
        the rank has stored the whole prompt, is cleared or reset, or loses messages, and with
        `withdraw`. The index has no clock: who promises also withdraws, at the end of the request
        at the latest. A rank of which no group is known yet is promised nothing.

        Attention will hold every block of the prompt. A state will be had where the prompt ends
        and at `junction`: so many of its tokens were present when it was sent. `sparse_windows`
        says whether windows are kept only there, too, and both where the same prompt could resume:
        before its last token. None: if the pod's engine profile is not SGLang's, as vLLM does by
        default (`prefix_cache_retention_interval` 0, `kvbraid.cache.Interval`).

        Raises:
            UnknownError: The pod or rank is not registered, or serves another model.
            InvalidValueError: A token id does not exist.
        """
        try:
            return self._core.promise(
                (pod, dp_rank), request, request.token_ids, junction, sparse_windows
            )
        except NOT_TAKEN:
            refuse_request(request)
            raise

    def withdraw(self, promise: int) -> bool:
        """End a promise; return whether it still counted."""
        return self._core.withdraw(promise)

    def num_promised(self) -> int:
        """Return how many promises count."""
        return self._core.num_promised()

    def seen(self, request: Request) -> Seen:
        """Say how much of a request was ever shown by events or promises, and since forgotten.

        That is at least what any rank holds or names. Beyond it, a table of fixed memory
        (`seen_limit_bytes`) remembers what no rank names any longer, and promised prompts. One
        block is evidence of everything before it: the last one that is known decides. `pods`,
        `tiers` and weights of the request make no difference. May place undecided hashes for good;
        a hash whose place stays undecided shows nothing.

        Raises:
            UnknownError: No pod serves the model.
            InvalidValueError: As in `score`.
        """
        try:
            return Seen._make(self._core.seen(request, request.token_ids))
        except NOT_TAKEN:
            refuse_request(request)
            raise

    def score(self, request: Request, *, with_seen: bool = False) -> Scores:
        """Say what every rank of the model could reuse. May place undecided hashes for good.

        `with_seen` asks for `Scores.seen`, too, which costs little beside the scores.

        Raises:
            UnknownError: No pod serves the model, or a pod asked for does not. (For such a pod,
                `weighted_blocks` answers with an `unknown` row instead.)
            InvalidValueError: A token id or a tier does not exist, or no request can have the
                value of another field.
        """
        try:
            answer = self._core.score(request, request.token_ids, with_seen)
        except NOT_TAKEN:
            refuse_request(request)
            raise
        return Scores(answer, self._core)

    def score_many(self, requests: Iterable[Request]) -> list[Scores]:
        """Score several requests in one call: one answer each, in order, as `score` gives it.

        The index is not held for the whole call: a thread that waits for it waits for one answer.

        Raises:
            UnknownError, InvalidValueError: As in `score`; the message starts with the place of
                the first such request (`requests[2]: `), and no answer is returned.
        """
        given = listed(requests)
        try:
            answers = self._core.score_many([(each, each.token_ids) for each in given])
        except NOT_TAKEN:
            for place, request in enumerate(given):
                refuse_request(request, f"requests[{place}]: ")
            raise
        return [Scores(answer, self._core) for answer in answers]

    async def score_async(self, request: Request) -> Scores:
        """Score without holding up an event loop of asyncio: at once if short, else on a thread.

        It is short if there are few tokens and ranks (`kvbraid.fleet.awaiting`), and no other
        thread has the index. If the caller is cancelled, the thread ends by itself.

        Raises the same errors as `score`.
        """
        num_ranks = sum(list(self._ranks.values()))
        return await awaiting.answer(
            request, num_ranks=num_ranks, try_score=self.try_score, score=self.score
        )

    def try_score(self, request: Request) -> Scores | None:
        """Score unless another call is using the index; else return None without waiting.

        Raises the same errors as `score`.
        """
        try:
            answer = self._core.try_score(request, request.token_ids)
        except NOT_TAKEN:
            refuse_request(request)
            raise
        return None if answer is None else Scores(answer, self._core)

    def explain(self, request: Request) -> Explanation:
        """Explain every rank's answer under the exact strategy, group by group.

        Raises:
            InvalidValueError: As in `score`, or more than 4 194 304 blocks would be shown over all
                groups of all ranks.
            UnknownError: As in `score`.
        """
        try:
            answer, whys = self._core.explain(request, request.token_ids)
        except NOT_TAKEN:
            refuse_request(request)
            raise
        rows = []
        for score, (reason, groups) in zip(Scores(answer, self._core).rows, whys, strict=True):
            rows.append(
                PodExplanation(
                    pod=score.pod,
                    dp_rank=score.dp_rank,
                    state=score.state,
                    lower=score.lower,
                    upper=score.upper,
                    limiting=score.limiting,
                    reason=_reason(score.exactness, reason),
                    groups=[_strip(*strip) for strip in groups],
                )
            )
        return Explanation(rows)

    def pods(self) -> list[PodInfo]:
        """Return what is known about every rank, in the order of pod names."""
        return [_info(row) for row in self._core.pods()]

    def models(self) -> list[str]:
        """Return the models that have a pod, sorted."""
        return self._core.models()

    def memory_bytes(self) -> int:
        """Return the bytes that are allocated (for limbo, an estimate)."""
        return self._core.memory_bytes()

    def enforce_limits(self) -> None:
        """Bring memory under its limits now. The index also does this itself from time to time."""
        self._core.enforce_limits()

    def check_integrity(self) -> None:
        """Panic unless every structure agrees with every other. For tests: it walks everything."""
        self._core.check_integrity()


def _reason(exactness: str, state_reason: str) -> str:
    if exactness == "exact":
        return ""
    return state_reason or "some hashes have no certain place along this request"


_Group: TypeAlias = tuple[int | None, str, int, int | None, int | None, bool]


def _group_id(index: int | None) -> GroupId | None:
    return None if index is None else GroupId(index)


def _strip(group: _Group, held: list[bool], accepted: list[int] | None) -> GroupStrip:
    index, kind, block_size, window, _, _ = group
    return GroupStrip(
        group=_group_id(index),
        kind=SpecKind(kind),
        block_size=block_size,
        window=window,
        held=held,
        accepted=accepted,
    )


def _known_group(group: _Group, held: Sequence[int]) -> KnownGroup:
    index, kind, block_size, window, chunk, eagle = group
    return KnownGroup(
        group=_group_id(index),
        kind=SpecKind(kind),
        block_size=block_size,
        window=window,
        chunk=chunk,
        eagle=eagle,
        held=dict(zip((tier.value for tier in Tier), held, strict=True)),
    )


def _info(row: "_InfoTuple") -> PodInfo:
    pod, dp_rank, model, (state, reason), messages, groups, placed, refused, rest = row
    return PodInfo(
        pod=PodId(pod),
        dp_rank=dp_rank,
        model=model,
        state=PodState(state),
        reason=reason,
        messages=messages,
        groups=[_known_group(*both) for both in zip(groups, rest[3], strict=True)],
        placed=dict(zip(("tokens", "join", "query", "unplaced"), placed, strict=True)),
        refused=refused,
        hash_function=rest[0],
        num_blocks=rest[1],
        memory_bytes=rest[2],
    )


__all__ = ["FleetIndex", "IndexOptions", "Keys", "Presence"]
