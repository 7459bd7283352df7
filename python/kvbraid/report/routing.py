"""`kvbraid fleet simulate`: every policy on one workload, shown as a table or as lines."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from kvbraid.errors import counted
from kvbraid.report.console import progress, stdout
from kvbraid.report.simulation import model_label
from kvbraid.report.tables import Column, Listing, Row, print_lines, print_listing
from kvbraid.sim.routing.arrivals import Arrivals, ClosedLoop, OpenLoop
from kvbraid.sim.routing.comparison import BLIND, Comparison
from kvbraid.sim.routing.results import Result

COLUMNS: Final = (
    Column("policy", is_left=True),
    Column("knows", is_left=True),
    *map(Column, ("mean s", "p50", "p90", "p99", "hit %", "over %", "skew", "busy %")),
)


def run_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """Play every rule. Progress goes to stderr, results go to stdout.

    Raises:
        TooLargeError: A pod's pool cannot hold a prompt.
        InvalidValueError: The rate, the load or the number of users is out of range.
    """
    results = []
    with progress(TimeElapsedColumn()) as bars:
        arrivals = comparison.arrivals(_bar(bars, comparison, "finding the rate"))
        for rule in comparison.rules:
            name = rule.name + ("" if rule.in_flight else ", events")
            results.append(comparison.play(rule, arrivals, _bar(bars, comparison, name)))
            if as_json:
                line = json.dumps(_to_json(comparison, arrivals, results[-1]))
                print(line, flush=True)  # noqa: T201 - the output itself
    if not as_json:
        show_comparison(stdout(), comparison, arrivals, results)


def _bar(bars: Progress, comparison: Comparison, name: str) -> partial[None]:
    task = bars.add_task(name, total=len(comparison.work.asks))
    return partial(_advance, bars, task)


def _advance(bars: Progress, task: TaskID, num_done: int) -> None:
    bars.update(task, completed=num_done)


def _to_json(comparison: Comparison, arrivals: Arrivals, result: Result) -> dict[str, Any]:
    return {
        "workload": comparison.work.name,
        "model": comparison.fleet.model.name,
        "num_pods": comparison.fleet.num_pods,
        "num_blocks": comparison.fleet.num_blocks,
        "rate": arrivals.rate if isinstance(arrivals, OpenLoop) else None,
        "users": arrivals.users if isinstance(arrivals, ClosedLoop) else None,
        "seed": comparison.options.seed,
        **result.to_json(),
    }


def show_comparison(
    console: Console, comparison: Comparison, arrivals: Arrivals, results: Sequence[Result]
) -> None:
    """Print a row for each rule, the least mean first."""
    ordered = sorted(results, key=lambda result: result.ttft_mean_s)
    listing = Listing(
        title="time until the first token (s), and where it comes from",
        columns=COLUMNS,
        rows=[_row(result) for result in ordered],
    )
    print_listing(console, listing)
    print_lines(console, _about(comparison, arrivals, results))


def _row(result: Result) -> Row:
    sees = "-" if result.policy in BLIND else "sent" if result.in_flight else "events"
    times = (
        result.ttft_mean_s, result.ttft_p50_s, result.ttft_p90_s, result.ttft_p99_s,
    )  # fmt: skip
    return (
        result.policy,
        sees,
        *map(_seconds, times),
        f"{100 * result.hit_rate:.1f}",
        f"{100 * result.overstated_tokens / result.prompt_tokens:.1f}",
        f"{result.imbalance:.2f}",
        f"{100 * result.utilisation:.0f}",
    )


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _about(comparison: Comparison, arrivals: Arrivals, results: Sequence[Result]) -> list[str]:
    fleet, work = comparison.fleet, comparison.work
    checked = sum(result.num_checked for result in results)
    violated = sum(result.num_violated for result in results)
    come = (
        f"{arrivals.rate:.4g} requests a second"
        if isinstance(arrivals, OpenLoop)
        else counted(comparison.options.users or 0, "user")
    )
    return [
        f"{work.name}: {counted(len(work.asks), 'request')}, {come}, seed "
        f"{comparison.options.seed}; the first quarter counts for bounds alone",
        f"{model_label(fleet.model.name)} on {counted(fleet.num_pods, 'pod')} of "
        f"{counted(fleet.num_blocks, 'block')} each",
        f"{counted(checked, 'bound')} checked, {violated:,} violated",
    ]
