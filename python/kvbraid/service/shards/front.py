"""All shards of a fleet as one index: what a front has in its place.

Invariant: an answer has a row for every rank of every pod, whatever becomes of shards. What a
shard does not say in time is a bound, and no error. The caller's thread asks, one at a time: it
sends to all shards and waits for all of them together.
"""

import contextlib
import logging
import secrets
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, TypeVar

import msgspec

from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, UnknownError, one_line, shortened
from kvbraid.events.sequence import Settled
from kvbraid.fleet import Columns, Request
from kvbraid.fleet.answer import Seen
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId, PodState
from kvbraid.policy.view import RankId
from kvbraid.service.answers import ErrorAnswer, IndexRow
from kvbraid.service.config import Followed
from kvbraid.service.errors import RefusalError
from kvbraid.service.ports import ExplainedRequest
from kvbraid.service.replicas import SharedTable
from kvbraid.service.sharding import shard_of
from kvbraid.service.shards.link import ShardLink, ShardTarget
from kvbraid.service.shards.merging import UNKNOWN, Asked, Merged, merge, merge_rows, read_rows
from kvbraid.service.shards.messages import (
    MESSAGE_PACK,
    WrongAnswerError,
    promise_question,
    prompt_of,
    read_answer,
    score_question,
    withdraw_question,
)
from kvbraid.spec import Topology

QUESTION: Final = ShardTarget("/v1/shard", MESSAGE_PACK)
ROWS: Final = ShardTarget("/v1/score", "application/json")

TOKENS_OF_A_DEADLINE: Final = 65_536
"""For each so many tokens of a prompt, a shard has its deadline once more."""

LOOK_S: Final = 1.0

_OK: Final = 200
_OF_THE_REQUEST: Final = "invalid_value"
"""The code of refusals that say something of the request, and not of the shard."""

_LOGGER: Final = logging.getLogger("kvbraid.shards")
_ERROR: Final = msgspec.json.Decoder(ErrorAnswer)
_Told = TypeVar("_Told")


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
        num, self._run = len(table.shards), secrets.token_hex(8)
        self.links: Mapping[int, ShardLink] = {
            number: ShardLink(f"{number}/{num}", url, key, clock=clock)
            for number, url in enumerate(table.shards, start=1)
        }
        self._answer_s = table.shard_answer_s
        self._clock = clock
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
            known = _KnownPod(model, dp_size, shard_of(pod, len(self.links)))
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

        told = self._ask(QUESTION, asked, question, request, partial(read_answer, num_tokens))
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
        asked = self._about(request)
        fields = {name: getattr(request, name) for name in Request.__slots__}
        fields["token_ids"] = list(request.token_ids)
        if request.extra_keys is not None:
            fields["extra_keys"] = [MediaItem(*item)._asdict() for item in request.extra_keys]

        def question(pods: Sequence[PodId] | None) -> bytes:
            return msgspec.json.encode(fields | {"pods": pods})

        told = self._ask(ROWS, asked, question, request, read_rows)
        return merge_rows(asked, told, request.model, len(request.token_ids))

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

    def _ask(
        self,
        target: ShardTarget,
        asked: Asked,
        question: Callable[[Sequence[PodId] | None], bytes],
        request: Request,
        read: Callable[[bytes], _Told],
    ) -> dict[int, _Told]:
        """Ask all shards that have one of the pods; return what those have told that are in time.

        Raises:
            InvalidValueError: A shard says that no request can have a value of this one.
        """
        same = question(None) if request.pods is None else None
        bodies = {number: same or question(list(pods)) for number, pods in asked.pods.items()}
        told: dict[int, _Told] = {}
        with self._lock:
            more = 1 + len(request.token_ids) // TOKENS_OF_A_DEADLINE
            end = self._clock() + self._answer_s * more
            links = {n: self.links[n] for n in bodies if self.links[n].ask(target, bodies[n])}
            self._wait(links.values(), end)
            answers = {number: link.take() for number, link in links.items()}
            for number, answer in answers.items():
                if answer is not None and answer.status == _OK:
                    with _judging(links[number]):
                        told[number] = read(answer.body)
                elif answer is not None:
                    _note_refusal(links[number], answer.body)
        return told

    def _wait(self, links: Iterable[ShardLink], end: float) -> None:
        while waiting := {link.fileno(): link for link in links if link.is_waited_for}:
            left_s = end - self._clock()
            if left_s <= 0:
                return
            poll = select.poll()
            for number, link in waiting.items():
                poll.register(number, link.events)
            for number, _ in poll.poll(left_s * 1000):
                waiting[number].proceed()

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
            told = promise_question(
                prompt_of(request), self._name(number), rank, junction, sparse_windows
            )
            self.links[known.shard].ask(QUESTION, told, is_waited_for=False)
            return number

    def withdraw(self, promise: int) -> bool:
        """End a promise; return whether it still counted here."""
        with self._lock:
            shard = self._promised.pop(promise, None)
            if shard is not None:
                told = withdraw_question([self._name(promise)])
                self.links[shard].ask(QUESTION, told, is_waited_for=False)
            return shard is not None

    def num_promised(self) -> int:
        """Return how many promises were made and not withdrawn."""
        return len(self._promised)

    def _name(self, promise: int) -> str:
        return f"{self._run}:{promise}"

    # ---- what an index can do and a front cannot -------------------------------------------

    def routed(
        self, pod: PodId, request: Request, produced: Sequence[int], *, dp_rank: int = 0
    ) -> None:
        """Refuse: the pod's shard is to be told."""
        del request, produced, dp_rank
        raise other_shard(f"{self.links[shard_of(pod, len(self.links))].name} indexes {pod}")

    def explain(self, request: Request) -> ExplainedRequest:
        """Refuse: the shards explain."""
        del request
        raise other_shard("a front has no index, and explains nothing")

    def memory_bytes(self) -> int:
        """Return 0: nothing is indexed here."""
        return 0

    # ---- what an operator sees -------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why some rows are bounds; empty if none has to be."""
        with self._lock:
            for link in self.links.values():
                link.look()
        told = ((link.name, link.problem or link.complaint) for link in self.links.values())
        return "; ".join(f"{name} {what}" for name, what in told if what)

    def close(self) -> None:
        """Close all connections."""
        self._is_over.set()
        with self._lock:
            for link in self.links.values():
                link.close()

    def _watch(self) -> None:
        """Keep connections alive, and see when one is lost although nobody asks."""
        nothing, before = withdraw_question(()), ""
        while not self._is_over.wait(LOOK_S):
            with self._lock:
                for link in self.links.values():
                    link.keep_alive(QUESTION, nothing)
            if self.problem != before:
                before = self.problem
                _LOGGER.warning("%s", before or "all shards answer")

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


class NoFeed:
    """What a front has in place of a subscriber: it follows nobody.

    `on_close` is called when it is closed.
    """

    failure: str | None = None

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.close = on_close

    def add(self, pod: PodId, config: Followed, progress: Sequence[Settled] = (), /) -> None:
        """Follow nothing: the pod's shard does."""

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        """Return False: there is nothing to work on."""
        del pod, work
        return False

    def check(self, config: Followed, replaced: Followed | None, /) -> None:
        """Accept every address."""

    def remove(self, pod: PodId, /) -> None:
        """Do nothing."""

    def status(self) -> Sequence[object]:
        """Return no row."""
        return ()

    def strays(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def start(self) -> None:
        """Do nothing."""


def other_shard(what: str) -> RefusalError:
    """Return the refusal of what another server is to be asked."""
    return RefusalError("other_shard", what)


@contextlib.contextmanager
def _judging(link: ShardLink) -> Iterator[None]:
    """Note whether what is read meanwhile is an answer."""
    try:
        yield
    except (WrongAnswerError, msgspec.MsgspecError) as error:
        link.judge("malformed", f"is no shard of this version: {one_line(str(error))}")
    else:
        link.judge("answered")


def _note_refusal(link: ShardLink, body: bytes) -> None:
    """Note a refusal; one that says something of the request is raised.

    Raises:
        InvalidValueError: No request can have a value of this one.
    """
    try:
        error = _ERROR.decode(body).error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        link.judge("malformed", "answers with something else")
        return
    if error.code == _OF_THE_REQUEST:
        link.judge("answered")
        raise InvalidValueError(error.message)
    link.judge("refused", f"refuses: {one_line(error.message)}")
