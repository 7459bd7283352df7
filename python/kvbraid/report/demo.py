"""Shows the demo: a live table on a terminal; without a terminal, a line now and then.

It shows the driver's tallies and does not change them.
"""

import time
from collections.abc import Collection, Iterable
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvbraid.errors import counted
from kvbraid.report.console import stdout
from kvbraid.sim.fleet.driver import Outcome, PodTally, totals
from kvbraid.spec import GroupSpec, Topology

_NUM_PLAIN_LINES: Final = 10
_REQUESTS_A_LINE: Final = 20  # Where the traffic has no end.
_PAUSE_S: Final = 0.05  # After each request on a terminal: people can then read the table.
_COLUMNS: Final = (
    "pod",
    "state",
    "served",
    "full only",
    "predicted",
    "reused",
    "exact",
    "blocks",
    "evicted",
)
_LEGEND: Final = "full only: tokens that counting full-attention blocks alone would have promised"


def watch(
    outcomes: Iterable[Outcome], tallies: Collection[PodTally], num_requests: int | None
) -> None:
    """Show outcomes as they come; the last table stays on the screen, even after an interrupt.

    The requests of the tallies count as shown already. Without `num_requests` there is no end.
    """
    console = stdout()
    display = Display(console, tallies, num_requests=num_requests)
    number = before = sum(tally.requests for tally in tallies)
    try:
        with display:
            for number, outcome in enumerate(outcomes, start=before + 1):
                display.show(number, outcome)
    finally:
        console.print(display.table(number))


class Display:
    """Shows progress while its context lasts; `console` decides whether there is a terminal."""

    def __init__(
        self, console: Console, tallies: Collection[PodTally], *, num_requests: int | None
    ) -> None:
        self.is_live = console.is_terminal
        self._console = console
        self._tallies = tallies
        self._num_requests = num_requests
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, number: int, outcome: Outcome) -> None:
        """Show the state after request `number`, counted from 1."""
        if self.is_live:
            self._live.update(self.table(number, outcome), refresh=True)
            time.sleep(_PAUSE_S)
        elif number % self._requests_a_line() == 0:
            exact, wrong, early, predicted, true, present = totals(self._tallies)
            self._console.print(
                f"{self._progress(number)}: {exact} exact, {wrong} wrong, {early} early (not "
                f"judged); predicted {predicted} tokens, reused {true}, full only {present}",
                soft_wrap=True,
            )

    def table(self, number: int, outcome: Outcome | None = None) -> Group:
        """Lay out all pods and the request that was just served, in at most 80 columns."""
        messages = sum(tally.messages for tally in self._tallies)
        title = f"{self._progress(number)}, {counted(messages, 'message')}"
        table = Table(title=title, box=None, padding=(0, 1, 0, 0))
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column in _COLUMNS[:2] else "right")
        for tally in self._tallies:
            table.add_row(*_cells(tally))
        presets = {tally.preset.model: tally.preset for tally in self._tallies}
        legend = [f"{m}: {describe_groups(p.topology)}" for m, p in presets.items()]
        last = [] if outcome is None else [_sentence(outcome)]
        return Group(table, *map(Text, [_LEGEND, *legend, *last]))

    def _progress(self, number: int) -> str:
        if self._num_requests is None:
            return counted(number, "request")
        return f"{number:,} of {counted(self._num_requests, 'request')}"

    def _requests_a_line(self) -> int:
        if self._num_requests is None:
            return _REQUESTS_A_LINE
        return max(1, self._num_requests // _NUM_PLAIN_LINES)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._live.stop()


def describe_groups(topology: Topology) -> str:
    """Describe a topology in a few words: equal neighbours appear once, with their number."""
    names = [_describe(group) for group in topology.groups]
    runs = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    return " + ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in runs
    )


def _describe(group: GroupSpec) -> str:
    kind = group.kind.value.removesuffix("_attention").replace("sliding_window", "window")
    return " ".join(str(part) for part in (kind, group.window or group.chunk) if part)


def _cells(tally: PodTally) -> list[str]:
    return [
        tally.pod,
        str(tally.row.get("state", "")),
        str(tally.requests),
        str(tally.present),
        str(tally.predicted),
        str(tally.true),
        f"{tally.exact}/{tally.exact + tally.wrong}",
        f"{tally.answer.cached_blocks}/{tally.preset.num_blocks - 1}",
        str(tally.answer.removed_blocks),
    ]


def _sentence(outcome: Outcome) -> str:
    bound = "" if outcome.lower == outcome.upper else f" to {outcome.upper}"
    early = "asked before all messages had arrived, not judged"
    verdict = "exact" if outcome.is_exact else early if outcome.is_early else "WRONG"
    return (
        f"{outcome.num_tokens} tokens to {outcome.pod}: predicted {outcome.lower}{bound}, "
        f"reused {outcome.true}: {verdict}"
    )
