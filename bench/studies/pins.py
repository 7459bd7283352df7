"""Would it help if replicas told each other where load has moved a session?

Requests of one session go to the same rank among near-equal ones, by a hash that needs no
state. When load moves a session, its next turn may come to the other replica. A pin says where
the session went last, and is preferred to the hash. Here two replicas share their load and what
is on its way, as they do, and pins as no server could: at once, without a limit, and never lost.
The next turn of a session comes after the answer. What routers know of prompts is one of `KNOWN`.

`make study ONLY=pins` plays every cell with three seeds, seed by seed, and goes on where it was
stopped. A ratio divides by the geometric mean of two runs without pins, whose hashes differ.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import product
from math import inf, log, sqrt
from statistics import geometric_mean, mean, stdev
from typing import ClassVar, Final, NamedTuple

from kvbraid.policy import CostRule, Decision, FleetView
from kvbraid.policy.view import RankId
from kvbraid.sim.routing.arrivals import ClosedLoop
from kvbraid.sim.routing.fleet import RoutingRule, SimulatedReplicas, play
from kvbraid.sim.routing.results import WARM_UP, Served, result_of
from kvbraid.sim.routing.workloads import Ask

from bench.router.cells import Size, ready
from bench.studies.policies import Row, RowStudy, Study, label_of_pair

VERSION: Final = 1
SIZE: Final = Size(num_requests=640, sessions=0.5)
TWO: Final = SimulatedReplicas(num=2)


class Known(NamedTuple):
    """The share of events that get lost, and whether what is on its way counts."""

    loss: float
    in_flight: bool


KNOWN: Final = {
    "events": Known(0.0, in_flight=True),
    "what was sent": Known(1.0, in_flight=True),
    "lengths alone": Known(1.0, in_flight=False),
}
"""With events; of pods without events; and if nobody knows the ids of prompts."""


class Cell(NamedTuple):
    """What routers know, the model, the traffic, and how many users there are at once."""

    known: str
    model: str
    work: str
    users: int


CELLS: Final = tuple(
    Cell(*axes)
    for axes in product(KNOWN, ("full", "states"), ("agents", "chat", "mixed"), (16, 64))
)
PAIRS: Final = tuple(product(range(1, 4), CELLS))


class Pins(NamedTuple):
    """Who has them, if anybody, and the share of the least cost that following one may add.

    `salt` makes hashes other ones.
    """

    owner: str | None = None
    reach: float = 0.02
    salt: str = ""


WITHOUT: Final = ("none", "none, other hashes")
RULES: Final = {
    WITHOUT[0]: Pins(),
    WITHOUT[1]: Pins(salt="other"),
    "own": Pins("own"),
    "shared": Pins("shared"),
    "shared, for up to 25 % of the cost": Pins("shared", reach=0.25),
}


class Pinned(CostRule):
    """Our rule with pins. `numbers` has the session of each prompt, by the prompt's bytes."""

    name: ClassVar[str] = "pinned"

    def __init__(self, rule: Pins, numbers: dict[bytes, int], pins: dict[int, RankId]) -> None:
        super().__init__()
        self._rule, self._numbers, self._pins = rule, numbers, pins

    def costs(self, view: FleetView) -> list[float]:
        """Return the cost at the rank that is preferred among near-equal ones, and no other."""
        costs, session = super().costs(view), self._session(view)
        near = self._within(self.slack, costs)
        place = max(near, key=lambda place: self._affinity(session, view.ranks[place]))
        pin = self._pins.get(session) if self._rule.owner else None
        for pinned in self._within(self._rule.reach, costs):
            place = pinned if view.ranks[pinned] == pin else place
        return [cost if each == place else inf for each, cost in enumerate(costs)]

    def chosen(self, decision: Decision) -> None:
        """Pin the session to where it went."""
        self._pins[self._session(decision.view)] = decision.rank

    def _session(self, view: FleetView) -> int:
        return self._numbers[array("I", view.request.token_ids).tobytes()]

    def _within(self, share: float, costs: Sequence[float]) -> list[int]:
        most = min(costs) * (1 + share)
        return [place for place, cost in enumerate(costs) if cost <= most]

    def _affinity(self, session: int, rank: RankId) -> bytes:
        return blake2b(f"{self._rule.salt}{session} {rank}".encode()).digest()


def rule_of(name: str, numbers: dict[bytes, int]) -> RoutingRule:
    """Return a rule for one run of two replicas, which have the same pins if they are shared."""
    pins, shared = RULES[name], dict[int, RankId]()
    return RoutingRule(
        name,
        lambda: Pinned(pins, numbers, shared if pins.owner == "shared" else {}),
        replicas=TWO,
    )


def stayed(asks: Sequence[Ask], served: Sequence[Served]) -> float:
    """Return the share of later turns that went where their session's turn before them went."""
    last: dict[int, int] = {}
    stays = []
    for each in served:
        session = asks[each.number].session
        if session in last and each.number >= len(served) // WARM_UP:
            stays.append(last[session] == each.pod)
        last[session] = each.pod
    return mean(stays)


def compute(cell: Cell, seed: int) -> Row:
    """Play a cell with one seed, with each kind of pins."""
    work, fleet = ready(cell.model, cell.work, seed, size=SIZE)
    fleet, known = replace(fleet, loss=KNOWN[cell.known].loss), KNOWN[cell.known]
    numbers = {ask.prompt().tobytes(): ask.session for ask in work.asks}
    arrivals = ClosedLoop(users=cell.users, think_s=0.5)
    figures = {}
    for name in RULES:
        rule = replace(rule_of(name, numbers), in_flight=known.in_flight)
        served = play(work, fleet, arrivals, rule, seed=seed)
        result = result_of(served, fleet.num_pods, policy=name, in_flight=known.in_flight)
        kept = stayed(work.asks, served)
        each = (kept, result.hit_rate, result.ttft_mean_s, result.ttft_p99_s)
        figures[name] = [round(figure, 5) for figure in each]
    return {"version": VERSION, "cell": ", ".join(map(str, cell)), "seed": seed, "pins": figures}


def run(study: Study) -> int:
    """Compute what is missing, then write the page; return the exit status."""
    calls = {
        f"{', '.join(map(str, cell))}, seed {seed}": partial(compute, cell, seed)
        for seed, cell in PAIRS
    }
    return RowStudy(
        name="pins", version=VERSION, calls=calls, label_of=label_of_pair, page=page
    ).run(study)


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    of = {known: [row for row in rows if row["cell"].startswith(known)] for known in KNOWN}
    return [
        "# What it is worth to share where load has moved a session",
        "",
        "Written by `make study ONLY=pins`; do not edit by hand. Two replicas that share their",
        "load and what is on its way. `stayed` has the later turns of sessions that went where",
        "the turn before went, `reused` the tokens of prompts, both in percent. Then the mean",
        "and the p99 of the time until the first token, over those without pins: the geometric",
        "means over the pairs of a cell and a seed, and the standard error of the first.",
        "",
        f"Played so far: {len(rows)} of {len(PAIRS)} pairs.",
        *(line for known in KNOWN for line in _table(known, of[known], of["lengths alone"])),
    ]


def _table(known: str, rows: Sequence[Row], lengths: Sequence[Row]) -> list[str]:
    wait_s, most_s = (geometric_mean(_without(row, 2) for row in each) for each in (rows, lengths))
    return [
        "",
        f"Routers that know {known}. Without pins the mean is {wait_s / most_s:.2f} times that of",
        "routers that know lengths alone:",
        "",
        "| pins | stayed | reused | mean | standard error | p99 |",
        "|---|--:|--:|--:|--:|--:|",
        *(_line(rows, name) for name in RULES),
    ]


def _line(rows: Sequence[Row], name: str) -> str:
    stays, reused = (100 * mean(row["pins"][name][part] for row in rows) for part in (0, 1))
    means, p99s = (
        [row["pins"][name][part] / _without(row, part) for row in rows] for part in (2, 3)
    )
    error = stdev(map(log, means)) / sqrt(len(means)) if len(means) > 1 else 0.0
    ratios = f"{geometric_mean(means):.3f} | {error:.3f} | {geometric_mean(p99s):.3f}"
    return f"| {name} | {stays:.1f} | {reused:.1f} | {ratios} |"


def _without(row: Row, part: int) -> float:
    return geometric_mean(row["pins"][name][part] for name in WITHOUT)
