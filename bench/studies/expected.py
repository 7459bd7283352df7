"""Does ranking pods by `expected` help where no event tells of windows and states?

`make study ONLY=expected` lets four pods live the same recorded life of an SGLang engine, a
quarter of it apart. Each request of the first pod is asked of all four, and each way of ranking
them picks one. `TRACES=folder` names a folder with captures; without it, those of the tests are
played. The threshold was written down before the first run: `expected` stays if it picks another
pod than `lower` and saves 3 % of the computed tokens.

What the first pod reuses was recorded. What another pod would reuse is what a second index
expects, which is told of every request; the page shows how often it expects what was recorded.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.sim.captures.read import Capture, Lookup, read_capture
from kvbraid.spec import EngineDialect

from bench.studies import late
from bench.studies.policies import Study

FIXTURES: Final = late.FIXTURES / "sglang"
PODS: Final = tuple(map(PodId, ("a", "b", "c", "d")))
RANKINGS: Final[Mapping[str, Callable[[PodScore], int]]] = {
    "lower": lambda row: row.lower,
    "middle": lambda row: row.lower + row.upper,
    "upper": lambda row: row.upper,
    "expected": lambda row: row.expected,
}


@dataclass(slots=True)
class Tally:
    """What was found: requests, and those whose recorded reuse the told index expected.

    By ranking, `computed` has the tokens that the picked pods compute, and `others` the requests
    for which `expected` picks another pod. `best` is a ranking that knows what each pod reuses.
    """

    capture: str
    requests: int = 0
    right: int = 0
    computed: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Add what was found of another capture."""
        self.requests += other.requests
        self.right += other.right
        self.computed.update(other.computed)
        self.others.update(other.others)


def run(study: Study) -> int:
    """Play all captures, write the page and print it; return the exit status."""
    captures = captures_in(study.traces) or captures_in(FIXTURES)
    lines = page([tally(capture) for capture in captures])
    (study.folder / "expected.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


def captures_in(folder: Path) -> list[Capture]:
    """Return the captures of engines with groups of which no event tells.

    An engine with a host tier is left out, because an index takes no notice of its requests.
    """
    captures = (read_capture(config.parent) for config in sorted(folder.glob("*/config.json")))
    return [
        each
        for each in captures
        if each.engine.dialect is EngineDialect.SGLANG
        and len(each.topology.groups) > 1
        and each.tiers is None
    ]


def tally(capture: Capture) -> Tally:
    """Ask four pods for each request of the first."""
    found, random = Tally(capture.name), Random(capture.name)
    lookups = [each for each in capture.operations if isinstance(each, Lookup)]
    untold, told = FleetIndex(), FleetIndex()
    lives = []
    for number, pod in enumerate(PODS):
        for index in (untold, told):
            lives.append(live(capture, lookups, index, pod, is_told=index is told))
            list(islice(lives[-1], number * len(lookups) // len(PODS)))
    for lookup in lookups:
        for life in lives:
            next(life)
        reused = [row.expected for row in told.score(request_of(lookup)).rows]
        found.right += reused[0] == lookup.reused_tokens
        reused[0] = lookup.reused_tokens
        rows = untold.score(request_of(lookup)).rows
        values = {name: list(map(value, rows)) for name, value in RANKINGS.items()}
        count(found, len(lookup.token_ids), values | {"best": reused}, random)
    return found


def live(
    capture: Capture, lookups: Sequence[Lookup], index: FleetIndex, pod: PodId, *, is_told: bool
) -> Iterator[None]:
    """Let a pod live a capture again and again; each step ends right before a lookup."""
    while True:
        index.register(pod, model="m", topology=capture.topology, engine=capture.engine)
        seen = 0
        for lookup in lookups:
            for message in capture.messages[seen : lookup.messages_seen]:
                index.apply(pod, message.payload)
            seen = lookup.messages_seen
            yield
            if is_told:
                index.routed(pod, request_of(lookup), lookup.outputs)
        index.remove(pod)


def request_of(lookup: Lookup) -> Request:
    """Return what a gateway asks."""
    tokens = memoryview(array("Q", lookup.token_ids))
    return Request(model="m", token_ids=tokens, cache_salt=lookup.cache_salt)


def count(found: Tally, length: int, values: Mapping[str, Sequence[int]], random: Random) -> None:
    """Count what each ranking picks. Between equals, one order that is drawn decides for all."""
    order = random.sample(range(len(PODS)), len(PODS))
    picks = {name: max(order, key=value.__getitem__) for name, value in values.items()}
    found.requests += 1
    found.computed.update({name: length - values["best"][pod] for name, pod in picks.items()})
    found.others.update(name for name, pod in picks.items() if pod != picks["expected"])


def page(tallies: Sequence[Tally]) -> list[str]:
    """Return the lines of the page."""
    whole = Tally(f"all {len(tallies)}")
    for each in tallies:
        whole.add(each)
    return [
        "# What ranking by `expected` saves",
        "",
        "Written by `make study ONLY=expected`; do not edit by hand. Four pods live the same",
        "recorded life of SGLang, a quarter of it apart, and each request goes to the pod that a",
        "ranking picks. `computed` has the tokens that are not reused there. `saved` is how many",
        "of them ranking by `expected` saves, and `another pod` how often it picks otherwise.",
        "Where a pod's reuse was not recorded, an index that is told of all requests says it;",
        "`right` is how often it expects what was recorded. `best` knows what each pod reuses.",
        "",
        "| capture | requests | right | ranked by | computed | another pod | saved |",
        "|---|--:|--:|---|--:|--:|--:|",
        *(row(each, name) for each in (*tallies, whole) for name in (*RANKINGS, "best")),
    ]


def row(found: Tally, name: str) -> str:
    """Return the row of one ranking."""
    computed = found.computed[name]
    cells = (
        found.capture,
        f"{found.requests:,}",
        f"{100 * found.right / found.requests:.1f} %",
        f"{name} | {computed:,} | {found.others[name]:,}",
        f"{100 * (1 - found.computed['expected'] / computed):.1f} %",
    )
    return f"| {' | '.join(cells)} |"
