"""The last requests that a rank was chosen for: why there, and what became of them.

Invariant: at most `most` requests are kept, and what is kept of one does not grow with its prompt,
unless the operator asks for prompts, which have a limit of bytes of their own. The request that
changed longest ago goes first. Each change has a number, so a reader can ask for what came after
the one that it knows. Thread-safe; the clock is the caller's.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf, isfinite
from threading import Lock
from typing import Final

from msgspec.structs import replace

from kvbraid.fleet import Request
from kvbraid.policy import Decision, Terms
from kvbraid.service.answers import CostTerms, PickCandidate, RecentRequest, RequestLadder
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.errors import RefusalError
from kvbraid.service.requests import ReportBody

_BYTES_PER_TOKEN: Final = 8
"""An upper estimate: ids are buffers of 4 or 8 bytes each, or lists of pointers."""

_STATUS: Final = {"first_token": "started", "end": "ended", "failed": "failed"}


class _Kept:
    """One request: its row as it is now, the number of its last change, its prompt if kept."""

    __slots__ = ("change", "request", "row")

    def __init__(self, row: RecentRequest, change: int, request: Request | None) -> None:
        self.row = row
        self.change = change
        self.request = request

    def prompt_bytes(self) -> int:
        return 0 if self.request is None else len(self.request.token_ids) * _BYTES_PER_TOKEN


class Recent:
    """The ring of the last requests; `options` are those of the whole console."""

    def __init__(self, options: ConsoleOptions | None = None) -> None:
        self.options = options or ConsoleOptions()
        self._lock = Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # That changed longest ago first.
        self._prompt_bytes = 0
        self._change = 0

    @property
    def keeps_prompts(self) -> bool:
        """Whether prompts are kept, so that their requests can be explained."""
        return self.options.prompts

    def note(self, decision: Decision, now: float) -> None:
        """Note a decision; one about a request that is known replaces it."""
        if not self.options.requests:
            return
        request = decision.view.request if self.options.prompts else None
        row = _row(decision, now, has_prompt=request is not None)
        with self._lock:
            self._drop(row.request)
            self._change += 1
            kept = self._kept[row.request] = _Kept(row, self._change, request)
            self._prompt_bytes += kept.prompt_bytes()
            while len(self._kept) > self.options.requests:
                self._drop(next(iter(self._kept)))
            self._bound_prompts()

    def tell(self, told: ReportBody, ladder: RequestLadder | None, now: float) -> None:
        """Note what has become of a request; of one that is not kept nothing is noted."""
        with self._lock:
            kept = self._kept.get(told.pick)
            if kept is None:
                return
            self._change += 1
            kept.change = self._change
            kept.row = replace(
                kept.row,
                status=_STATUS[told.event],
                changed_s=now,
                delivered=told.cached_tokens,
                ladder=ladder,
            )
            self._kept.move_to_end(told.pick)

    def changed_after(self, change: int, most: int) -> tuple[int, list[RecentRequest]]:
        """Return the number of the last change, and rows that changed after `change`.

        The latest change comes first; at most `most` rows are returned.
        """
        rows: list[RecentRequest] = []
        with self._lock:
            for kept in reversed(self._kept.values()):
                if kept.change <= change or len(rows) == most:
                    break
                rows.append(kept.row)
            return self._change, rows

    def of(self, name: str) -> list[RecentRequest]:
        """Return the row of a request; none if it is not kept."""
        with self._lock:
            kept = self._kept.get(name)
            return [] if kept is None else [kept.row]

    def prompt(self, name: str) -> Request:
        """Return a request with its prompt.

        Raises:
            RefusalError: `unknown_request`: it is not kept, or without its prompt.
        """
        with self._lock:
            kept = self._kept.get(name)
        if kept is None:
            told = f"request {name!r} is not among the last {self.options.requests}"
            raise RefusalError("unknown_request", told)
        if kept.request is None:
            raise RefusalError("unknown_request", f"the prompt of request {name!r} is not kept")
        return kept.request

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._prompt_bytes -= kept.prompt_bytes()

    def _bound_prompts(self) -> None:
        """Forget the prompts of requests that changed longest ago, but not the requests."""
        if self._prompt_bytes <= self.options.prompt_bytes:
            return
        for kept in self._kept.values():
            self._prompt_bytes -= kept.prompt_bytes()
            if kept.request is not None:
                kept.request, kept.row = None, replace(kept.row, has_prompt=False)
            if self._prompt_bytes <= self.options.prompt_bytes:
                return

    def check_integrity(self) -> None:
        """Assert that the limits are kept and changes are in order. For tests."""
        kept = list(self._kept.values())
        changes = [each.change for each in kept]
        assert changes == sorted(set(changes)), changes
        assert not changes or changes[-1] <= self._change
        assert len(kept) <= self.options.requests
        assert self._prompt_bytes == sum(each.prompt_bytes() for each in kept)
        assert self._prompt_bytes <= self.options.prompt_bytes
        assert all(each.row.has_prompt == (each.request is not None) for each in kept)
        assert all(name == each.row.request for name, each in self._kept.items())


def candidates_at(decision: Decision, places: Sequence[int]) -> list[PickCandidate]:
    """Return the ranks at some places as the decision saw them."""
    view, costs = decision.view, decision.costs
    terms: Sequence[Terms | None] = decision.terms_at(places) or [None] * len(places)
    return [
        PickCandidate(
            pod=view.ranks[place][0],
            dp_rank=view.ranks[place][1],
            resumable=view.resumable[place],
            present=view.present[place],
            running=view.running[place],
            waiting=view.waiting[place],
            cost=finite(costs[place]),
            terms=None if each is None else cost_terms(each),
        )
        for place, each in zip(places, terms, strict=True)
    ]


def cost_terms(terms: Terms) -> CostTerms:
    """Return the terms of a cost as answers have them."""
    return CostTerms(**terms._asdict())


def finite(cost: float) -> float | None:
    """Return a cost as JSON has it: None for the infinite one of whom the policy leaves out."""
    return cost if isfinite(cost) else None


def _row(decision: Decision, now: float, *, has_prompt: bool) -> RecentRequest:
    places, costs = [decision.place], decision.costs
    if len(costs) > 1:
        places.append(_runner_up(costs, decision.place))
    chosen, *others = candidates_at(decision, places)
    return RecentRequest(
        request=decision.name,
        decided_s=now,
        changed_s=now,
        model=decision.view.request.model,
        num_tokens=len(decision.view.request.token_ids),
        chosen=chosen,
        runner_up=others[0] if others else None,
        num_candidates=len(costs),
        state=decision.state,
        lower=decision.lower,
        upper=decision.upper,
        policy=decision.policy.name,
        knowledge=decision.knowledge,
        seconds=decision.origin,
        lifted=list(decision.lifted),
        left_out=dict(decision.left_out),
        has_prompt=has_prompt,
    )


def _runner_up(costs: list[float], chosen: int) -> int:
    """Return the place of the least cost besides the chosen one; each may be infinite."""
    others = costs.copy()  # Copying and `min` cost a fraction of a sort by key.
    others[chosen] = inf
    place = others.index(min(others))
    return place if place != chosen else int(chosen == 0)
