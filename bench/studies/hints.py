"""What is it worth to say whether a later request goes on from the end of this one?

`make study ONLY=hints` plays public traces and workloads of the bench `retention` with hints that
are right for 100, 80 and 50 % of the sessions, and without any. The truth comes from the traffic
itself: whether a later prompt begins with this one. A session is told rightly or wrongly as a
whole. Results are lines in a file, and a study that was stopped continues where it was.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvbraid.cache import ByValue, EvictionPolicy
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.simulation import simulate

from bench.retention import play
from bench.retention.bench_cells import NUM_REQUESTS
from bench.retention.checkpoints import Numbers
from bench.retention.play import MODELS
from bench.retention.workloads import WORKLOADS, asks
from bench.studies.traces import BOUNDED, TIGHT, lacks, num_blocks_of, trace_of

if TYPE_CHECKING:
    from bench.studies.policies import Study

VERSION: Final = 3
"""The version of what a cell computes. Raise it if the cache or the traffic changes."""

NUM_TRACED: Final = 2_000
"""The first requests of a trace, which are played."""

TRACED: Final = ("llama-3.1-8b", "gpt-oss-120b", "qwen3-next-80b-a3b")
PLAYED: Final = ("chat", "turning", "giant")
EVICTION_POLICIES: Final = {"adapts": None, "value": EvictionPolicy.VALUE}
RIGHT: Final = (None, 100, 80, 50)
"""How many percent of the sessions are told rightly; None: nothing is told."""

Pool = tuple[str, str, str]
"""Traffic, model and pool of a cell."""
Session = int
Prompts = Sequence[tuple[Session, Sequence[int]]]
"""The session of each prompt, and the prefixes of the prompt."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure. `pool`: the share of a trace's working set, or the blocks of a workload's."""

    traffic: str
    model: str
    pool: str
    policy: str
    right: int | None


def cells() -> list[Cell]:
    """Return all cells: of the traces, and of the middle pool of each workload and model."""
    pools = [*product(BOUNDED, TRACED, TIGHT)]
    middle = {name: str(model.pools[1]) for name, model in MODELS.items()}
    pools += [(workload, *pool) for workload, pool in product(PLAYED, middle.items())]
    return [Cell(*pool, *rest) for pool in pools for rest in product(EVICTION_POLICIES, RIGHT)]


def run(study: "Study") -> int:
    """Compute the missing cells and write the page, also if stopped; return the exit status."""
    if said := lacks(study.traces):
        print(said, file=sys.stderr)
        return 2
    results = study.folder / "hints.jsonl"
    done = read_results(results)
    todo = [cell for cell in cells() if cell not in done]
    try:
        with ProcessPoolExecutor(study.num_jobs) as pool, results.open("a") as file:
            rates = pool.map(compute, [study.traces] * len(todo), todo)
            for number, (cell, rate) in enumerate(zip(todo, rates, strict=True), start=1):
                done[cell] = rate
                print(json.dumps([VERSION, asdict(cell), rate]), file=file, flush=True)
                print(f"[{number}/{len(todo)}] {cell}: {rate}", file=sys.stderr, flush=True)
    finally:
        (study.folder / "hints.md").write_text("\n".join(page(done)) + "\n")
    return 0


def read_results(path: Path) -> dict[Cell, float]:
    """Read the cells that this version made."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {
        Cell(**cell): rate for version, cell, rate in map(json.loads, lines) if version == VERSION
    }


def compute(traces: Path, cell: Cell) -> float:
    """Return the hit rate of a cell, in percent."""
    rate = _played(cell) if cell.traffic in PLAYED else _traced(traces, cell)
    return round(rate, 2)


def _played(cell: Cell) -> float:
    model, policy = MODELS[cell.model], ByValue(policy=EVICTION_POLICIES[cell.policy])
    played = asks(WORKLOADS[cell.traffic], cell.traffic, NUM_REQUESTS)
    numbers = Numbers(unit=16)
    paths = [numbers.path(ask.tokens) for ask in played]
    hints = told([(path[0], path) for path in paths], cell.right)
    return play.hit_rate(model, int(cell.pool), policy, played, hints=hints)


def _traced(traces: Path, cell: Cell) -> float:
    trace, model = trace_of(traces, cell.traffic, NUM_TRACED), simulated_model(cell.model)
    num_blocks = num_blocks_of(traces, cell.traffic, cell.model, cell.pool, NUM_TRACED)
    policy = ByValue(interval=8_192, cost=model.cost, policy=EVICTION_POLICIES[cell.policy])
    hints = told([(each.conversation, each.ids) for each in trace.play()], cell.right)
    result = simulate(trace, model, num_blocks, policy.aligned(model.alignment), hints=hints)
    return 100 * result.rate


def told(prompts: Prompts, right: int | None) -> list[bool]:
    """Return what is said of each prompt; nothing if nothing is told."""
    if right is None:
        return []
    return [
        truth if _is_told_rightly(session, right) else not truth
        for (session, _), truth in zip(prompts, _truths(prompts), strict=True)
    ]


def _is_told_rightly(session: Session, right: int) -> bool:
    number = int.from_bytes(sha256(f"hints {session}".encode()).digest()[:4])
    return number % 100 < right


def _truths(prompts: Prompts) -> list[bool]:
    """Whether some later prompt begins with each prompt, as far as the prefixes tell."""
    later: set[int] = set()
    truths = []
    for _, path in reversed(prompts):
        truths.append(bool(path) and path[-1] in later)
        later.update(path)
    return truths[::-1]


def page(rates: dict[Cell, float]) -> Iterator[str]:
    """Yield the lines of the page: the pools of which all cells are there."""
    columns = [*product(EVICTION_POLICIES, RIGHT)]
    names = [f"{policy}, {'no hints' if right is None else right}" for policy, right in columns]
    yield from (
        "# Hints",
        "",
        "Written by `make study ONLY=hints` from hints.jsonl; do not edit by hand. Rates are",
        f"percentages of the prompt tokens: of the first {NUM_TRACED:,} requests of a trace, and",
        f"of {NUM_REQUESTS - play.WARM_UP:,} requests of a workload, after {play.WARM_UP} that do",
        "not count. 100, 80 and 50: so many percent of the sessions are told rightly. `adapts` is",
        "`ByValue()`, `value` is `ByValue(policy=EvictionPolicy.VALUE)`.",
        "",
        f"{len(rates)} of {len(cells())} cells are there; the same command computes the others.",
        "",
        f"| traffic | model | pool | {' | '.join(names)} |",
        "|---|---|--:|" + "--:|" * len(columns),
    )
    pools = dict.fromkeys((cell.traffic, cell.model, cell.pool) for cell in cells())
    whole = [pool for pool in pools if all(Cell(*pool, *column) in rates for column in columns)]
    for pool in whole:
        shown = " | ".join(f"{rates[Cell(*pool, *column)]:.1f}" for column in columns)
        yield f"| {' | '.join(pool)} | {shown} |"
    yield from (
        "",
        "Against the same policy without hints, in points: the mean, the least and the most.",
        "",
        "| traffic | policy | 100 | 80 | 50 |",
        "|---|---|--:|--:|--:|",
    )
    for traffic, policy in product(dict.fromkeys(pool[0] for pool in whole), EVICTION_POLICIES):
        of_traffic = [pool for pool in whole if pool[0] == traffic]
        gains = (_gains(rates, of_traffic, policy, right) for right in RIGHT if right is not None)
        yield f"| {traffic} | {policy} | {' | '.join(gains)} |"


def _gains(rates: dict[Cell, float], pools: Sequence[Pool], policy: str, right: int) -> str:
    found = [
        rates[Cell(*pool, policy, right)] - rates[Cell(*pool, policy, None)] for pool in pools
    ]
    return f"{sum(found) / len(found):+.1f} ({min(found):+.1f} to {max(found):+.1f})"
