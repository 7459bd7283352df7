"""Choosing a rank for each request: the router between requests of HTTP and the index.

Invariant: a request is booked before its answer is made, so before anything is awaited. This is
where the router gets its time from; the clock is passed in. Names of pods and requests come from
outside, and nothing is kept by them longer than a booking is.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from heapq import nsmallest
from threading import Lock
from typing import Final
from uuid import uuid4

from kvbraid.fleet import Request
from kvbraid.ids import PodId
from kvbraid.policy import Decision, EngineLoad, Fitted, RankLoads, Router, Standing
from kvbraid.policy.bookings import Booking
from kvbraid.policy.view import RankId, RankNames
from kvbraid.service.answers import (
    Fallback,
    FitAnswer,
    PickAnswer,
    PickedAnswer,
    RequestLadder,
    RequestsAnswer,
)
from kvbraid.service.coefficients import PolicyAnswer, policy_answer
from kvbraid.service.config import PodConfig, Serving
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.errors import RefusalError
from kvbraid.service.ladder import Ladder
from kvbraid.service.ports import Index, Spans
from kvbraid.service.recent import Recent, candidates_at, cost_terms, finite
from kvbraid.service.requests import PickRequest, RankBody, ReportBody
from kvbraid.service.routing import Routing
from kvbraid.service.rungs import Delivery, Rungs, rungs_of

MOST_FALLBACKS: Final = 3
"""How many ranks an answer names besides the chosen one."""

UNKNOWN_CANDIDATE: Final = "unknown"
"""The reason for which a candidate is left out that is no pod of the model."""

_Pods = Mapping[PodId, PodConfig]


class Candidates:
    """The ranks that a data plane hands over: pods with all their ranks, and single ranks."""

    def __init__(self, given: Collection[str | RankBody]) -> None:
        self._given = given
        self._pods = {each for each in given if isinstance(each, str)}
        self._ranks = {(r.pod, r.dp_rank) for r in given if isinstance(r, RankBody)}

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, tuple) and (rank[0] in self._pods or rank in self._ranks)

    def __len__(self) -> int:
        return len(self._given)

    def strangers(self, model: str, pods: _Pods) -> int:
        """Return how many of them are of no registered pod of the model."""
        named = (PodId(each if isinstance(each, str) else each.pod) for each in self._given)
        return sum(pod not in pods or pods[pod].model != model for pod in named)


class Picking:
    """A router with its clock, and what is counted of it. Thread-safe.

    Attributes:
        picks: By what they were made from: `events` or `promises`.
        filters: By a filter's name and whether it has `left_out` ranks or was `lifted`: picks.
        reports: By event and status: `noted`, `unknown` or `refused`.
        tokens: Sums over the prompts whose `delivered` tokens were reported: `prompt`, `lower`,
            `upper`, `resumable`.
        spans: Makes a span of each decision; None: nobody asked for that.
        num_spans: What has become of them: `exported`, `failed` or `dropped`.
        ladder: From the prompts to what was delivered, with the reason of each gap.
        recent: The last requests, with their decisions and what became of them.
        on_choice: Is told of each choice, and for how long other replicas should count it as on
            its way; on any thread. It must not wait.
    """

    def __init__(
        self,
        index: Index,
        routing: Routing | None = None,
        *,
        console: ConsoleOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routing = routing = routing or Routing()
        self._router = Router(
            index,
            routing.make_policy(),
            seconds=routing.seconds,
            options=replace(routing.options, with_seen=True),
            note=rungs_of,
        )
        self._clock = clock
        self._lock = Lock()
        self._serving: dict[PodId, Serving] = {}
        self._unready: set[PodId] = set()
        self.picks = Counter(events=0, promises=0)
        self.filters: Counter[tuple[str, str]] = Counter()
        self.reports: Counter[tuple[str, str]] = Counter()
        self.tokens = Counter(prompt=0, lower=0, upper=0, resumable=0, delivered=0)
        self.spans: Spans | None = None
        self.num_spans = Counter(exported=0, failed=0, dropped=0)
        self.ladder = Ladder(clock)
        self.recent = Recent(console)
        self.on_choice: Callable[[Decision, float], None] | None = None

    def route_by(self, routing: Routing) -> None:
        """Choose by another table from the next pick on; what is booked stays booked."""
        old, self._routing = self._routing, routing
        is_same = (old.policy, old.costs) == (routing.policy, routing.costs)
        self._router.route_by(
            None if is_same else routing.make_policy(),
            seconds=routing.seconds,
            options=replace(routing.options, with_seen=True),
        )

    # ---- pods ------------------------------------------------------------------------------

    def stand(self, pod: PodId, serving: Serving) -> None:
        """Note how a pod takes requests, from the next pick on."""
        with self._lock:
            self._serving[pod] = serving
            self._stand(pod, serving)

    def set_ready(self, pod: PodId, *, is_ready: bool) -> None:
        """Note whether a pod can be sent requests at all; one that is unknown is none."""
        with self._lock:
            serving = self._serving.get(pod)
            if serving is not None:
                (self._unready.discard if is_ready else self._unready.add)(pod)
                self._stand(pod, serving)

    def forget(self, pod: PodId) -> None:
        """Forget how a pod takes requests. Its bookings stay until their requests end."""
        with self._lock:
            self._serving.pop(pod, None)
            self._unready.discard(pod)
            self._router.forget(pod)

    def note_load(self, rank: RankId, load: EngineLoad) -> None:
        """Note what a rank's engine says of its load."""
        self._router.note_load(rank, load, now=self._clock())

    def engine_loads(self) -> dict[RankId, EngineLoad]:
        """Return what engines have said of their load lately."""
        return self._router.engine_loads(now=self._clock())

    def _stand(self, pod: PodId, serving: Serving) -> None:
        standing = Standing(
            is_ready=pod not in self._unready,
            drains=serving.drain,
            max_running=serving.max_running,
        )
        if standing == Standing():
            self._router.forget(pod)
        else:
            self._router.set_standing(pod, standing)

    # ---- requests --------------------------------------------------------------------------

    def pick(self, asked: PickRequest, pods: _Pods, *, traceparent: str = "") -> PickAnswer:
        """Choose a rank and book the request there; `traceparent` names the trace that it is of.

        Raises:
            UnknownError: No pod serves the model.
            NoRankError: No rank may be sent the request.
            InvalidValueError: The index cannot score the request.
        """
        fields, model = asked.fields, asked.request.model
        given = None if fields.candidates is None else Candidates(fields.candidates)
        strangers = given.strangers(model, pods) if given is not None else 0
        decision = self.choose(
            fields.request_id or uuid4().hex,
            asked.request,
            candidates=given,
            session=fields.session,
            priority=fields.priority or 0,
            traceparent=traceparent,
        )
        left_out = {UNKNOWN_CANDIDATE: strangers} if strangers else {}
        self._count_filters(left_out)
        left_out |= decision.left_out
        return _answer(decision, left_out, pods, explain=fields.explain or False)

    def choose(  # noqa: PLR0913 - as of `Router.pick`
        self,
        name: str,
        request: Request,
        *,
        candidates: RankNames | None = None,
        session: str | None = None,
        priority: int = 0,
        num_tokens: int = 0,
        may_overfill: bool = True,
        traceparent: str = "",
    ) -> Decision:
        """Choose a rank and book the request there, under a name of its own.

        `num_tokens` is about how many tokens a prompt has whose ids are not known.
        Raises as `pick`, and FullError unless it `may_overfill` a rank if all are full.
        """
        spans = self.spans
        now, began = self._clock(), spans.now() if spans is not None else 0
        decision = self._router.pick(
            name,
            request,
            now=now,
            candidates=candidates,
            session=session,
            priority=priority,
            num_tokens=num_tokens,
            may_overfill=may_overfill,
        )
        with self._lock:
            self.picks[decision.knowledge] += 1
        if spans is not None:
            spans.note(decision, traceparent, began)
        self.recent.note(decision, now)
        if self.on_choice is not None:
            self.on_choice(decision, self._router.promised_s(decision))
        self._count_filters(decision.left_out, decision.lifted)
        return decision

    def report(self, told: ReportBody) -> PickedAnswer:
        """Note what has become of a pick; one that has no booking is counted and said so.

        Raises:
            RefusalError: `invalid_value`: tokens that no such report can have.
        """
        booking = self._router.booking(told.pick)
        wrong = _what_is_wrong(told, booking)
        if wrong:
            self._note(told.event, "refused")
            raise RefusalError("invalid_value", wrong)
        is_known = self._tell(told, booking)
        self._note(told.event, "noted" if is_known else "unknown")
        if not is_known or booking is None:
            return PickedAnswer(pick=told.pick, status="unknown")
        ladder = self._deliver(booking, told) if told.event == "end" else None
        self.recent.tell(told, ladder, self._clock())
        return PickedAnswer(pick=told.pick, status="noted", ladder=ladder)

    def _tell(self, told: ReportBody, booking: Booking | None) -> bool:
        now = self._clock()
        if told.event == "first_token":
            return self._router.first_token(told.pick, now=now)
        if told.event == "failed":
            return self._router.fail(told.pick, now=now)
        same = booking is not None and told.prompt_tokens in (None, booking.tokens)
        cached = told.cached_tokens if same else None  # It reused tokens of another prompt.
        return self._router.end(told.pick, now=now, cached_tokens=cached)

    # ---- other replicas --------------------------------------------------------------------

    def booked(self) -> RankLoads:
        """Return what is booked here, for other replicas."""
        return self._router.booked(now=self._clock())

    def merge(self, replica: str, loads: RankLoads) -> bool:
        """Take what another replica has booked; return whether it counts."""
        return self._router.merge(replica, loads, now=self._clock())

    def promise(self, rank: RankId, request: Request, lasts_s: float) -> bool:
        """Count a request as on its way that another replica has sent; return whether it counts.

        Raises:
            KvbraidError: No pod serves the model, or it cannot be scored.
        """
        return self._router.promise(rank, request, lasts_s=lasts_s, now=self._clock())

    def replica_ages_s(self) -> dict[str, float]:
        """Return how long ago each replica was heard whose bookings count."""
        return self._router.replica_ages_s(now=self._clock())

    # ---- what an operator sees -------------------------------------------------------------

    def release(self) -> None:
        """Release what nobody has reported in time, so that what is shown is not older."""
        self._router.release(now=self._clock())

    def running(self, pod: PodId, dp_rank: int) -> int:
        """Return how many requests are in flight at a rank."""
        return self._router.running((pod, dp_rank))

    def waiting(self, pod: PodId, dp_rank: int) -> int:
        """Return how many of these have no first token yet."""
        return self._router.waiting((pod, dp_rank))

    def rank(self, name: str) -> RankId | None:
        """Return where a request in flight is booked."""
        booking = self._router.booking(name)
        return None if booking is None else booking.rank

    def rungs(self, name: str) -> Rungs | None:
        """Return what was known of a request in flight when its rank was chosen."""
        booking = self._router.booking(name)
        rungs = None if booking is None else booking.note
        return rungs if isinstance(rungs, Rungs) else None

    @property
    def is_choosing(self) -> bool:
        """Whether another thread is being told its choice, for which `pick` would wait."""
        return self._router.is_choosing

    def num_booked(self) -> int:
        """Return how many requests are in flight."""
        return self._router.num_booked()

    def counts(self) -> dict[str, int]:
        """Return what the router has counted besides picks and reports."""
        counted = self._router.counts()
        return {kind: counted.get(kind, 0) for kind in _COUNTED}

    def policy_answer(self) -> PolicyAnswer:
        """Return the rule and the coefficients that count, as GET /v1/policy has them."""
        return policy_answer(self._router)

    def recent_answer(self, name: str | None = None) -> RequestsAnswer:
        """Return the last requests as GET /v1/requests has them, or one if it is among them."""
        if name is None:
            _, rows = self.recent.changed_after(0, self.recent.options.requests)
        else:
            rows = self.recent.of(name)
        prompts = self.recent.keeps_prompts
        return RequestsAnswer(now_s=self._clock(), keeps_prompts=prompts, requests=rows)

    def _count_filters(self, left_out: Collection[str], lifted: Collection[str] = ()) -> None:
        if left_out or lifted:
            with self._lock:
                self.filters.update((name, "left_out") for name in left_out)
                self.filters.update((name, "lifted") for name in lifted)

    def _note(self, event: str, status: str) -> None:
        with self._lock:
            self.reports[event, status] += 1

    def _deliver(self, booking: Booking, told: ReportBody) -> RequestLadder | None:
        prompt, rungs = booking.tokens, booking.note
        tokens = None if told.cached_tokens is None else min(told.cached_tokens, prompt)
        if tokens is not None:
            with self._lock:
                self.tokens["prompt"] += prompt
                self.tokens["lower"] += booking.lower
                self.tokens["upper"] += booking.upper
                self.tokens["resumable"] += prompt - booking.computes
                self.tokens["delivered"] += tokens
        if not isinstance(rungs, Rungs):
            return None
        return self.ladder.add(rungs, Delivery(tokens, told.prompt_tokens not in (None, prompt)))


_COUNTED: Final = (
    "asked_again", "released_by_time", "bookings_over_limit", "removed_meanwhile", "fit_samples",
    "fit_not_reported", "fit_impossible",
)  # fmt: skip


def _what_is_wrong(told: ReportBody, booking: Booking | None) -> str:
    cached, prompt = told.cached_tokens, told.prompt_tokens
    if told.event != "end":
        named = [("cached_tokens", cached), ("prompt_tokens", prompt)]
        given = next((name for name, tokens in named if tokens is not None), "")
        ending = f" with event {told.event}; expected it with event end alone"
        return f"{given}{ending}" if given else ""
    most = prompt if prompt is not None or booking is None else booking.tokens
    if cached is not None and most is not None and cached > most:
        return f"cached_tokens is {cached} of a prompt of {most} tokens"
    return ""


def _answer(
    decision: Decision, left_out: Mapping[str, int], pods: _Pods, *, explain: bool
) -> PickAnswer:
    view, place = decision.view, decision.place
    pod, dp_rank = decision.rank
    terms = decision.chosen_terms()
    return PickAnswer(
        pick=decision.name,
        model=view.request.model,
        num_tokens=len(view.request.token_ids),
        pod=pod,
        dp_rank=dp_rank,
        url=_url(pod, pods),
        state=decision.state,
        lower=decision.lower,
        upper=decision.upper,
        resumable=decision.resumable,
        present=view.present[place],
        cost=finite(decision.cost),
        terms=cost_terms(terms) if terms is not None else None,
        policy=decision.policy.name,
        knowledge=decision.knowledge,
        seconds=decision.origin,
        fit=_fit(decision.fitted) if decision.fitted is not None else None,
        lifted=list(decision.lifted),
        left_out=dict(left_out),
        fallbacks=_fallbacks(decision, pods),
        candidates=candidates_at(decision, range(len(view))) if explain else None,
    )


def _fit(fitted: Fitted) -> FitAnswer:
    seconds, num_samples, _ = fitted
    return FitAnswer(
        num_samples=num_samples,
        fixed=seconds.fixed,
        per_token=seconds.per_token,
        per_pair=seconds.per_pair,
    )


def _fallbacks(decision: Decision, pods: _Pods) -> list[Fallback]:
    """The next best ranks, none twice; a data plane may try them if the chosen one fails."""
    ranks, costs = decision.view.ranks, decision.costs
    best = nsmallest(MOST_FALLBACKS + 1, range(len(ranks)), key=costs.__getitem__)
    others = [place for place in best if place != decision.place]
    return [
        Fallback(pod=pod, dp_rank=dp_rank, url=_url(pod, pods), cost=finite(costs[place]))
        for place in others[:MOST_FALLBACKS]
        for pod, dp_rank in [ranks[place]]
    ]


def _url(pod: PodId, pods: _Pods) -> str | None:
    config = pods.get(pod)  # None if the pod was removed meanwhile.
    return config.serving.url if config is not None else None
