"""All shards of a fleet as one index: what a front has in its place.

Invariant: an answer has a row for every rank of every pod, whatever becomes of shards. What a
shard does not say in time is a bound, and no error. The caller's thread asks, one at a time: it
sends to all shards and waits for all of them together.
"""

import logging
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

import msgspec

from kvbraid.engine import EngineProfile
from kvbraid.errors import UnknownError, shortened
from kvbraid.fleet import Columns, Request
from kvbraid.fleet.answer import Seen
from kvbraid.ids import PodId, PodState
from kvbraid.policy.view import RankId
from kvbraid.service.answers import ExplainRow, IndexRow, PodsAnswer
from kvbraid.service.errors import RefusalError
from kvbraid.service.replicas import SharedTable
from kvbraid.service.sharding import shard_of
from kvbraid.service.shards.asking import QUESTION, ShardAsker
from kvbraid.service.shards.link import ShardLink, ShardTarget
from kvbraid.service.shards.merging import (
    UNKNOWN,
    Asked,
    Merged,
    merge,
    merge_pods,
    merge_rows,
    read_pods,
    read_reasons,
    read_rows,
    unknown_reasons,
    unknown_score,
)
from kvbraid.service.shards.messages import (
    json_question,
    promise_question,
    prompt_of,
    read_answer,
    routed_question,
    score_question,
    withdraw_question,
)
from kvbraid.spec import Topology

JSON: Final = "application/json"
ROWS: Final = ShardTarget("/v1/score", JSON)
REASONS: Final = ShardTarget("/v1/explain", JSON, deadlines=20)
ROUTED: Final = ShardTarget("/v1/routed", JSON, deadlines=20)
PODS: Final = ShardTarget("/v1/pods", JSON, deadlines=20, method="GET")
"""No choice waits for explanations, reports and counts, so a shard has more time for them."""

LOOK_S: Final = 1.0

_LOGGER: Final = logging.getLogger("kvbraid.shards")


@dataclass(frozen=True, slots=True)
class _KnownPod:
    model: str
    dp_size: int
    shard: int


class Front:
    """All shards as one index, which holds nothing; thread-safe.

    Attributes:
        memory_limit_bytes: None: there is nothing to limit.
    """

    memory_limit_bytes: int | None = None

    def __init__(
        self, table: SharedTable, key: str | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = secrets.token_hex(8)
        self._choices = ShardAsker(table, key, clock)
        self._others = ShardAsker(table, key, clock)  # So that no choice waits for an explanation.
        self._lock = threading.Lock()
        self._pods: dict[PodId, _KnownPod] = {}
        self._asked: dict[str, Asked] = {}  # By model; made anew when a pod comes or goes.
        self._last: dict[str, Columns] = {}  # By model.
        self._promised: dict[int, int] = {}  # The shard of each promise.
        self._num_promises = 0
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="kvbraid-shards", daemon=True).start()

    # ---- pods ------------------------------------------------------------------------------

    def register(
        self,
        pod: PodId,
        *,
        model: str,
        dp_size: int = 1,
        topology: Topology | None = None,
        engine: EngineProfile | None = None,
        loras: Mapping[str, str] | None = None,
    ) -> None:
        """Make a pod known, which its shard indexes."""
        del topology, engine, loras
        with self._lock:
            known = _KnownPod(model, dp_size, self._shard_of(pod))
            self._pods[pod] = known
            self._asked.clear()

    def remove(self, pod: PodId) -> None:
        """Forget a pod.

        Raises:
            UnknownError: It is not known.
        """
        with self._lock:
            if self._pods.pop(pod, None) is None:
                raise UnknownError(f"pod {shortened(pod)} is not registered")
            self._asked.clear()

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Take no notice: its shard knows better."""

    def pods(self) -> list[IndexRow]:
        """Return a row for each rank: its state as its shard said it last, and no counts."""
        with self._lock:
            pods, last = dict(self._pods), dict(self._last)
        states = {
            rank: state
            for columns in last.values()
            for rank, state in zip(columns.ranks, columns.states, strict=True)
        }
        return [
            IndexRow(
                pod=pod,
                dp_rank=dp_rank,
                model=known.model,
                state=states.get((pod, dp_rank), UNKNOWN),
                reason=f"{self.links[known.shard].name} indexes it",
                messages=0,
                groups=[],
                placed={},
                refused={},
                hash_function="unknown",
                num_blocks=0,
                memory_bytes=0,
            )
            for pod, known in sorted(pods.items())
            for dp_rank in range(known.dp_size)
        ]

    def with_counts(self, own: PodsAnswer) -> PodsAnswer:
        """Ask all shards what they say of their pods, and merge it with a front's own answer.

        `memory_bytes` is that of all shards that have answered.
        """
        numbers = {self._shard_of(PodId(row.pod)) for row in own.pods}
        told = self._others.ask(PODS, dict.fromkeys(numbers, b""), 0, read_pods)
        rows = merge_pods(own, told, lambda pod: self._shard_of(PodId(pod)), self._silence)
        return PodsAnswer(rows, own.now_s, sum(each.memory_bytes for each in told.values()))

    # ---- questions -------------------------------------------------------------------------

    def score(self, request: Request, *, with_seen: bool = False) -> "FrontScores":
        """Say what every rank of the model could reuse; the shards are asked when it is read."""
        return FrontScores(self, request, with_seen=with_seen)

    def try_score(self, request: Request) -> "FrontScores | None":
        """Return None: every answer has to be waited for."""
        del request
        return None

    def ask_columns(self, request: Request, *, with_seen: bool) -> Merged:
        """Ask all shards for their columns, and merge them.

        Raises:
            UnknownError: No pod serves the model.
            InvalidValueError: A shard says that no request can have a value of this one.
        """
        asked, num_tokens = self._about(request), len(request.token_ids)
        prompt = prompt_of(request)

        def question(pods: Sequence[PodId] | None) -> bytes:
            return score_question(prompt, request, pods, with_seen=with_seen)

        read = partial(read_answer, num_tokens)
        told = self._choices.ask(QUESTION, _bodies(question, asked, request), num_tokens, read)
        merged = merge(asked, told, num_tokens)
        for number in told:
            lacking = merged.lacking[number]
            self.links[number].complaint = f"lacks {lacking} ranks" if lacking else ""
        if request.pods is None:
            self._last[request.model] = merged.columns
        return merged

    def ask_rows(self, request: Request) -> bytes:
        """Ask all shards for their rows; return the body of a /v1/score answer.

        Raises as `ask_columns`.
        """
        asked, num_tokens = self._about(request), len(request.token_ids)
        told = self._others.ask(ROWS, _json_bodies(asked, request), num_tokens, read_rows)
        rows = merge_rows(asked, told, lambda _, rank: unknown_score(rank, num_tokens))
        fields = {"model": request.model, "num_tokens": num_tokens, "pods": rows}
        return msgspec.json.encode(fields)

    def explain(self, request: Request) -> "FrontReasons":
        """Ask all shards for the reasons of their answers.

        Raises as `ask_columns`.
        """
        asked, num_tokens = self._about(request), len(request.token_ids)
        read = partial(read_reasons, num_tokens)
        told = self._others.ask(REASONS, _json_bodies(asked, request), num_tokens, read)

        def unknown(number: int, rank: RankId) -> ExplainRow:
            return unknown_reasons(rank, num_tokens, self._silence(number))

        return FrontReasons(merge_rows(asked, told, unknown))

    def routed(
        self, pod: PodId, request: Request, produced: Sequence[int], *, dp_rank: int = 0
    ) -> None:
        """Tell a pod's shard what it was sent, and what came back.

        Raises:
            UnknownError: The pod does not serve the model, or has no such rank.
            InvalidValueError: As of the shard's index.
            RefusalError: `shard_silent`: the shard has not noted it.
        """
        [(number, pods)] = self._about(replace(request, pods=[pod])).pods.items()
        if dp_rank >= pods[pod]:
            raise UnknownError(f"pod {shortened(pod)} has no rank {dp_rank}")
        body = routed_question(request, (pod, dp_rank), produced)
        told = self._others.ask(ROUTED, {number: body}, len(request.token_ids), bytes)
        if not told:
            raise RefusalError("shard_silent", self._silence(number))

    def _silence(self, number: int) -> str:
        """Say why a shard has told nothing of a rank."""
        link = self._others.links[number]
        return f"{link.name} {link.trouble or 'does not have it yet'}"

    def _about(self, request: Request) -> Asked:
        with self._lock:
            whole = self._asked.get(request.model)
            if whole is None:
                whole = self._asked[request.model] = self._those(request.model, self._pods)
            if request.pods is None:
                return whole
            known = {pod: self._pods[pod] for pod in map(PodId, request.pods) if pod in self._pods}
            for pod in request.pods:
                if pod not in known or known[PodId(pod)].model != request.model:
                    told = f"pod {shortened(pod)} does not serve {shortened(request.model)}"
                    raise UnknownError(told)
            return self._those(request.model, known)

    def _those(self, model: str, pods: Mapping[PodId, _KnownPod]) -> Asked:
        of: defaultdict[int, dict[PodId, int]] = defaultdict(dict)
        for pod, known in pods.items():
            if known.model == model:
                of[known.shard][pod] = known.dp_size
        if not of:
            raise UnknownError(f"no registered pod serves model {shortened(model)}")
        return Asked(of)

    # ---- promises --------------------------------------------------------------------------

    def promise(
        self, rank: RankId, request: Request, junction: int, sparse_windows: bool | None
    ) -> int:
        """Tell a rank's shard that a request is on its way there; nobody waits for the answer.

        Raises:
            UnknownError: The pod is not registered any longer.
        """
        with self._lock:
            known = self._pods.get(rank[0])
            if known is None:
                raise UnknownError(f"pod {shortened(rank[0])} is not registered")
            self._num_promises = number = self._num_promises + 1
            self._promised[number] = known.shard
        prompt, name = prompt_of(request), self._name(number)
        told = promise_question(prompt, name, rank, junction, sparse_windows)
        self._choices.tell(known.shard, told)
        return number

    def withdraw(self, promise: int) -> bool:
        """End a promise; return whether it still counted here."""
        with self._lock:
            shard = self._promised.pop(promise, None)
        if shard is not None:
            self._choices.tell(shard, withdraw_question([self._name(promise)]))
        return shard is not None

    def num_promised(self) -> int:
        """Return how many promises were made and not withdrawn."""
        return len(self._promised)

    def _name(self, promise: int) -> str:
        return f"{self._run}:{promise}"

    # ---- what an operator sees -------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Return 0: nothing is indexed here."""
        return 0

    def elsewhere(self, pod: PodId) -> RefusalError:
        """Return the refusal of what the pod's shard is to be asked."""
        return other_shard(f"{self.links[self._shard_of(pod)].name} indexes pod {shortened(pod)}")

    @property
    def links(self) -> Mapping[int, ShardLink]:
        """The connections for choices, by the number of their shard."""
        return self._choices.links

    @property
    def counts(self) -> Mapping[int, Counter[str]]:
        """What has become of all questions, by the number of their shard."""
        counts = {number: Counter(link.counts) for number, link in self.links.items()}
        for number, link in self._others.links.items():
            counts[number].update(link.counts)
        return counts

    @property
    def problem(self) -> str:
        """Why some rows are bounds; empty if none has to be."""
        found = self._choices.problems() + self._others.problems()
        return "; ".join(dict.fromkeys(found))

    def close(self) -> None:
        """Close all connections."""
        self._is_over.set()
        self._choices.close()
        self._others.close()

    def _watch(self) -> None:
        """Keep connections alive, and see when one is lost although nobody asks."""
        before = ""
        while not self._is_over.wait(LOOK_S):
            self._choices.keep_alive()
            self._others.keep_alive()
            if self.problem != before:
                before = self.problem
                _LOGGER.warning("%s", before or "all shards answer")

    def _shard_of(self, pod: PodId) -> int:
        return shard_of(pod, len(self.links))

    def check_integrity(self) -> None:
        """Assert that promises are those of shards. For tests."""
        assert set(self._promised.values()) <= set(self.links)


class FrontScores:
    """One request; the shards are asked once for its columns, and for its rows each time."""

    def __init__(self, front: Front, request: Request, *, with_seen: bool) -> None:
        self._front = front
        self._request = request
        self._with_seen = with_seen

    @cached_property
    def _merged(self) -> Merged:
        return self._front.ask_columns(self._request, with_seen=self._with_seen)

    @property
    def seen(self) -> Seen | None:
        """What was ever there of it, as far as the shards say."""
        return self._merged.seen

    def columns(self) -> Columns:
        """Return the numbers of all rows."""
        return self._merged.columns

    def to_json(self) -> bytes:
        """Return the body of a /v1/score answer."""
        return self._front.ask_rows(self._request)

    def promise(
        self,
        pod: PodId,
        *,
        dp_rank: int = 0,
        junction: int = 0,
        sparse_windows: bool | None = None,
    ) -> int:
        """Promise the request to a rank, as `Front.promise`."""
        return self._front.promise((pod, dp_rank), self._request, junction, sparse_windows)


class FrontReasons(NamedTuple):
    """One explained request."""

    rows: Sequence[ExplainRow]


def other_shard(what: str) -> RefusalError:
    """Return the refusal of what another server is to be asked."""
    return RefusalError("other_shard", what)


def _bodies(
    question: Callable[[Sequence[PodId] | None], bytes], asked: Asked, request: Request
) -> dict[int, bytes]:
    """Return what to ask each shard; it is the same for all, unless pods are named."""
    if request.pods is None:
        return dict.fromkeys(asked.pods, question(None))
    return {number: question(list(pods)) for number, pods in asked.pods.items()}


def _json_bodies(asked: Asked, request: Request) -> dict[int, bytes]:
    return _bodies(partial(json_question, request), asked, request)
