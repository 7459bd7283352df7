"""Plays a workload: asks the server, sends to the pod that it recommends, compares with the truth.

Invariant: a prediction counts as exact or wrong only if the server had seen the last message of
every engine before it was asked. The other predictions are early and are counted separately. The
driver uses only the server's HTTP interface.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import httpx

from kvbraid.errors import ServiceError
from kvbraid.sim.fleet.engine import EngineAnswer, EngineRequest, Ready
from kvbraid.sim.fleet.presets import Preset, topology_body
from kvbraid.sim.fleet.workload import WorkRequest

_SETTLE_S: Final = 15.0
_POLL_S: Final = 0.002
_EARLY_EVERY: Final = 10
"""One in this many requests is predicted without waiting for the engines' messages."""


class Engine(Protocol):
    """One pod: an engine process, or a stand-in in tests."""

    pod: str
    preset: Preset

    @property
    def ready(self) -> Ready:
        """Where the engine publishes."""
        ...

    def serve(self, request: EngineRequest) -> EngineAnswer:
        """Run one request to its end."""
        ...


@dataclass(slots=True)
class PodTally:
    """The counts of one pod so far; hits are in tokens.

    `present` is what counting full-attention blocks alone would have predicted.
    """

    pod: str
    preset: Preset
    requests: int = 0
    exact: int = 0
    wrong: int = 0
    early: int = 0
    predicted: int = 0
    true: int = 0
    present: int = 0
    answer: EngineAnswer = field(default_factory=lambda: EngineAnswer(0, -1, 0, 0))
    row: dict[str, Any] = field(default_factory=dict)  # Of GET /v1/pods.

    @property
    def messages(self) -> int:
        """Messages that the engine has published."""
        return self.answer.last_seq + 1


class Totals(NamedTuple):
    """The sums over all pods so far: exact, wrong and early predictions, and tokens."""

    exact: int
    wrong: int
    early: int
    predicted: int
    true: int
    present: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, predicted and served. It `is_early` if not all messages had arrived.

    `present` is how much of it the pod's full attention held.
    """

    pod: str
    num_tokens: int
    lower: int
    upper: int
    true: int
    present: int
    is_early: bool

    @property
    def is_exact(self) -> bool:
        """Whether the prediction was one number, and the right one."""
        return self.lower == self.upper == self.true


class Driver:
    """Registers the engines with a server and plays requests, keeping a tally per pod."""

    def __init__(self, client: httpx.Client, engines: Sequence[Engine]) -> None:
        self._client = client
        self._engines = {engine.pod: engine for engine in engines}
        self.tallies = {e.pod: PodTally(e.pod, e.preset) for e in engines}

    def register(self) -> None:
        """PUT every engine; raises ServiceError if the server refuses one."""
        for engine in self._engines.values():
            body = {
                "model": engine.preset.model,
                "endpoint": engine.ready.endpoint,
                "replay_endpoint": engine.ready.replay_endpoint,
                "topology": topology_body(engine.preset.topology),
            }
            self._call("PUT", f"/v1/pods/{engine.pod}", body)

    def play(self, requests: Iterable[WorkRequest], *, picks: bool = False) -> Iterator[Outcome]:
        """Serve the requests in order, one at a time, and yield the outcome of each.

        With `picks` the server chooses their pods, and hears what was delivered.

        Raises ServiceError if the server or an engine fails, or if messages never arrive.
        """
        for number, request in enumerate(requests, start=1):
            is_early = number % _EARLY_EVERY == 0
            if not is_early:
                self.settle()
            best = self._pick(request) if picks else self._best(request)
            answer = self._engines[best["pod"]].serve(
                EngineRequest(list(request.prompt), list(request.outputs))
            )
            if picks:
                self._report(best["pick"], answer)
            yield self._note(request, best, answer, is_early=is_early)

    def most_overstated(self, requests: Sequence[WorkRequest]) -> WorkRequest:
        """Return the request of which a pod's full attention holds the most that is of no use now.

        Among equals it is the latest.
        """
        return max(reversed(requests), key=self._overstated)

    def _overstated(self, request: WorkRequest) -> int:
        return max(int(row["present"]) - int(row["upper"]) for row in self._score(request))

    def settle(self) -> None:
        """Wait until the server has seen every message and is certain of every pod."""
        deadline = time.monotonic() + _SETTLE_S
        while missing := self._missing():
            if time.monotonic() > deadline:
                raise ServiceError(f"messages did not arrive in {_SETTLE_S} s: {missing}")
            time.sleep(_POLL_S)

    def _missing(self) -> list[str]:
        for row in self._call("GET", "/v1/pods")["pods"]:
            self.tallies[row["pod"]].row = row
        return [
            f"{tally.pod} sent {tally.answer.last_seq}, the server has "
            f"{tally.row.get('last_seq')} and calls it {tally.row.get('state')}"
            for tally in self.tallies.values()
            if tally.row.get("state") != "exact"
            or _seq(tally.row.get("last_seq")) < tally.answer.last_seq
        ]

    def _score(self, request: WorkRequest) -> list[dict[str, Any]]:
        body = {"model": request.model, "token_ids": request.prompt}
        rows: list[dict[str, Any]] = self._call("POST", "/v1/score", body)["pods"]
        return rows

    def _best(self, request: WorkRequest) -> dict[str, Any]:
        return max(self._score(request), key=self._preference)

    def _pick(self, request: WorkRequest) -> dict[str, Any]:
        body = {"model": request.model, "token_ids": request.prompt}
        pick: dict[str, Any] = self._call("POST", "/v1/pick", body)
        return pick

    def _report(self, pick: str, answer: EngineAnswer) -> None:
        for event in ({"event": "first_token"}, {"event": "end", "cached_tokens": answer.hit}):
            self._call("POST", "/v1/picked", {"pick": pick, **event})

    def _preference(self, row: dict[str, Any]) -> tuple[int, int, int]:
        """The longest certain hit, then the longest held prefix, then the least used pod."""
        return row["lower"], row["present"], -self.tallies[row["pod"]].requests

    def _note(
        self, request: WorkRequest, row: dict[str, Any], answer: EngineAnswer, *, is_early: bool
    ) -> Outcome:
        outcome = Outcome(
            pod=row["pod"],
            num_tokens=len(request.prompt),
            lower=row["lower"],
            upper=row["upper"],
            true=answer.hit,
            present=row["present"],
            is_early=is_early,
        )
        tally = self.tallies[outcome.pod]
        tally.requests += 1
        tally.early += is_early
        tally.exact += outcome.is_exact and not is_early
        tally.wrong += not (outcome.is_exact or is_early)
        tally.predicted += outcome.lower
        tally.true += outcome.true
        tally.present += outcome.present
        tally.answer = answer
        return outcome

    def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        try:
            response = self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ServiceError(f"{method} {path}: {error}; is the server running?") from error
        if not response.is_success:
            raise ServiceError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()


def totals(tallies: Collection[PodTally]) -> Totals:
    """Add up the tallies of all pods."""
    return Totals(
        exact=sum(tally.exact for tally in tallies),
        wrong=sum(tally.wrong for tally in tallies),
        early=sum(tally.early for tally in tallies),
        predicted=sum(tally.predicted for tally in tallies),
        true=sum(tally.true for tally in tallies),
        present=sum(tally.present for tally in tallies),
    )


def _seq(last_seq: int | None) -> int:
    return -1 if last_seq is None else last_seq
