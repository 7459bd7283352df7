"""Where requests of Envoy go, and what their ends mean for the router.

Invariant: whoever was answered last about a request owns its booking, and only the owner's end
releases it: a request that is asked about again under the same name is booked once, and stays
booked when the earlier stream ends.
"""

import asyncio
import heapq
import re
from collections import Counter
from collections.abc import Mapping
from math import isfinite
from typing import Final, Literal, TypeAlias

from kvbraid.gateway.app import MODELS_PATH, models_answer
from kvbraid.gateway.asking import Asker, Question, name_of
from kvbraid.gateway.choosing import Chooser
from kvbraid.gateway.counts import PASSED_OVER, GatewayCounts
from kvbraid.gateway.envoy.logs import Ended
from kvbraid.gateway.envoy.messages import Destination
from kvbraid.gateway.envoy.processing import AskedBy, Processing, Told
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.headers import DP_RANK, REQUEST_ID, as_text
from kvbraid.gateway.prompts import PromptReader
from kvbraid.gateway.usage import delivered
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.config import FleetConfig
from kvbraid.service.errors import RefusalError
from kvbraid.service.registry import Service
from kvbraid.service.requests import ReportBody

EntryKind: TypeAlias = Literal["noted", "other_pod", "unknown", "no_end", "tcp", "garbage"]
"""What became of an entry of the access log.

`other_pod`: another one than the chosen has answered, so it says nothing of what was expected.
`unknown`: no request of this name is booked: never, no longer, or not here. `no_end`: it has no
name, or is not about an end. `tcp`: it is of a connection. `garbage`: a message without any.
"""

_DOTS: Final = re.compile(r"/\.{1,2}(?:/|$)")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class Picker:
    """Answers the questions of one server's streams.

    `counts`, `served` and `hints` are for its metrics: how pods and prompts fared, who has given
    answers, and which endpoints were handed over.
    """

    def __init__(self, service: Service, reader: PromptReader, config: FleetConfig) -> None:
        self._picking = service.picking
        self._paths = config.forwarding.paths
        self._most = config.forwarding.requests
        self._fallbacks = config.envoy.fallbacks
        self.counts = GatewayCounts()
        self.served: Counter[str] = Counter()
        self.hints: Counter[str] = Counter()
        self.fleet = Fleet(service, config.forwarding)
        self._asker = Asker(reader, Chooser(service, self.fleet, self.counts))
        self._num_asking = 0
        self._names: dict[Processing, str] = {}
        self._owners: dict[str, Processing] = {}

    # ---- where it goes ---------------------------------------------------------------------

    async def decide(self, stream: Processing, asked: AskedBy) -> Destination:
        """Choose a rank for the request of a stream, and book it there.

        Raises:
            RefusalError: `not_found`, `too_many_requests`, `no_pod` or `unknown_model`.
            NoRankError: No rank may get the request.
        """
        if self._num_asking >= self._most:
            raise RefusalError("too_many_requests", f"{self._most} questions wait for an answer")
        self._num_asking += 1
        try:
            decision = await self._decide(asked)
        finally:
            self._num_asking -= 1
        self._names[stream] = decision.name
        self._owners[decision.name] = stream
        return self._destination(decision)

    def at_once(self, asked: AskedBy) -> bytes | None:
        """Return the answer to a request that needs no pod, if it is one."""
        is_get = asked.given.get(b":method") == b"GET"
        is_models = is_get and _path(as_text(asked.given)) == MODELS_PATH
        return models_answer(self.fleet) if is_models else None

    async def _decide(self, asked: AskedBy) -> Decision:
        headers = as_text(asked.given)
        method, path = headers.get(":method", ""), _path(headers)
        if _DOTS.search(path) or not path.startswith(self._paths):
            raise RefusalError("not_found", f"{method} {path}")
        told = _DIGITS.fullmatch(headers.get("content-length", ""))
        question = Question(
            name=name_of(asked.given),
            path=path if method == "POST" else "",
            headers=headers,
            body=asked.body,
            num_bytes=max(int(told[0]) if told else 0, len(asked.body)),
            is_cut=asked.is_cut,
        )
        others = self._others(asked.candidates)
        return await self._asker.decide(
            question, lambda model: others | self.fleet.without_endpoint(model)
        )

    def _others(self, candidates: tuple[str, ...] | None) -> frozenset[PodId]:
        """Return the pods that a data plane does not allow."""
        if candidates is None:
            return frozenset()
        found = [self.fleet.at([each]) for each in candidates]
        self.hints.update("of_a_pod" if pods else "unknown" for pods in found)
        allowed = frozenset[PodId]().union(*found)
        if not allowed:
            told = f"none of the {len(candidates)} endpoints handed over is that of a pod"
            raise RefusalError("no_pod", told)
        return self.fleet.all_but(allowed)

    def _destination(self, decision: Decision) -> Destination:
        chosen = self._place(decision, decision.place)
        if chosen is None:
            message = f"pod {decision.rank[0]} was removed"
            raise RefusalError("no_pod", message, remedy="send it again")
        endpoint, headers = chosen
        others = (self._place(decision, place) for place in self._next(decision))
        fallbacks = [other for other in others if other is not None and other[1] == headers]
        named = dict.fromkeys([endpoint, *(other for other, _ in fallbacks)])
        return Destination(
            endpoints=tuple(named)[: 1 + self._fallbacks],
            headers={REQUEST_ID.decode(): decision.name, **headers},
        )

    def _next(self, decision: Decision) -> list[int]:
        """The places of the next best candidates; headers suit only some of them."""
        if not self._fallbacks:
            return []
        costs = decision.costs
        found = heapq.nsmallest(
            4 * (self._fallbacks + 1), range(len(costs)), key=costs.__getitem__
        )
        return [place for place in found if place != decision.place and isfinite(costs[place])]

    def _place(self, decision: Decision, place: int) -> tuple[str, Mapping[str, str]] | None:
        """Return a candidate's endpoint, and what it has to be told."""
        pod, dp_rank = decision.view.ranks[place]
        address = self.fleet.target(pod)
        if address is None or address.endpoint is None:
            return None
        return address.endpoint, {DP_RANK: str(dp_rank)} if address.num_ranks > 1 else {}

    # ---- what becomes of it ----------------------------------------------------------------

    def report(self, stream: Processing, told: Told) -> None:
        """Tell the router what a stream says of its request."""
        name = self._names.get(stream)
        if name is None or self._owners.get(name) is not stream:
            return  # Asked about again meanwhile: the booking is another stream's.
        self._tell(name, told)
        if told.event != "first_token":
            self._forget(stream)

    def close(self, stream: Processing, *, is_sent: bool) -> None:
        """End what a stream has booked that is over; `is_sent` says that Envoy was answered."""
        for told in stream.close(is_sent=is_sent):
            self.report(stream, told)
        if not is_sent:
            self.report(stream, Told("failed"))
        self._forget(stream)
        if stream.served:
            self.served[stream.served] += 1

    def _forget(self, stream: Processing) -> None:
        name = self._names.pop(stream, None)
        if name is not None and self._owners.get(name) is stream:
            del self._owners[name]

    def _tell(self, name: str, told: Told) -> bool:
        """Tell the router what has become of a request; say whether it was booked."""
        is_booked = self._picking.rank(name) is not None
        cached = other = None
        if is_booked and told.event == "end":
            rungs = self._picking.rungs(name)
            found = delivered(told.usage, rungs.prompt if rungs is not None else 0)
            self.counts.usage[found.said] += 1
            cached, other = found.cached_tokens, found.prompt_tokens
        report = ReportBody(pick=name, event=told.event, cached_tokens=cached, prompt_tokens=other)
        self._picking.report(report)
        return is_booked

    def note_end(self, ended: Ended) -> EntryKind:
        """Tell the router what the access log says of a request."""
        rank = self._picking.rank(ended.name)
        pods = self.fleet.at([ended.endpoint] if ended.endpoint else [])
        if ended.failure:
            self.counts.failures[ended.failure] += 1
            for pod in pods or ({rank[0]} if rank is not None else ()):
                self.fleet.note_failure(pod, ended.failure, now=self.now())
        else:
            for pod in pods:
                self.fleet.note_answer(pod)
        is_other = rank is not None and pods and rank[0] not in pods
        if rank is not None and is_other:
            self.counts.failures[PASSED_OVER] += 1
            self.fleet.note_failure(rank[0], "Envoy went on to another pod", now=self.now())
        is_known = self._tell(ended.name, Told("failed") if is_other else ended.told)
        return "unknown" if not is_known else "other_pod" if is_other else "noted"

    def sweep(self, now: float) -> None:
        """End the rests of pods that are over."""
        self.fleet.end_rests(now)

    def check_integrity(self) -> None:
        """Assert that every owner knows what it owns. For tests."""
        assert all(self._names[stream] == name for name, stream in self._owners.items())

    def now(self) -> float:
        """Return the time by which pods rest."""
        return asyncio.get_running_loop().time()


def _path(headers: Mapping[str, str]) -> str:
    return headers.get(":path", "").partition("?")[0]
