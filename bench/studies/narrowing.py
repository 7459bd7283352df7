"""What does narrowing add, where no hash function places the hashes of sparse stores?

`make study ONLY=narrowing` replays recorded lives of vLLM as `kvbraid replay` does, with limbo's
narrowing and without it. `TRACES=folder` names a folder with captures; without it, those of the
tests are replayed. The threshold was written down before the first run: narrowing stays if,
without it, one of a hundred exact answers is lost, or bounds get 10 % wider.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from kvbraid.fleet.index import IndexOptions, Keys
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, replay, total

from bench.studies.late import FIXTURES, FULL_REPORTS, captures_in
from bench.studies.policies import Study

MODES: Final[Mapping[str, Keys]] = {"auto": "auto", "auto, untold": "auto", "join": "join"}
"""How hashes are placed. `untold`: the operator has configured no hash function."""


class WideOptions(IndexOptions):
    """The options of an index that narrows nothing."""

    narrows: ClassVar[bool] = False


class WideReplay(ReplayOptions):
    """A replay whose index narrows nothing."""

    @property
    def of_index(self) -> IndexOptions:
        """The options of the index that predicts."""
        return WideOptions(keys=self.keys, presence=self.presence)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a replay found with narrowing, and without it."""

    narrow: Report
    wide: Report

    @property
    def lost_pct(self) -> float:
        """How many of a hundred answers are exact with narrowing only."""
        return self.narrow.exact_pct - self.wide.exact_pct

    @property
    def differs(self) -> bool:
        """Whether narrowing makes a difference to the answers."""
        narrow, wide = self.narrow, self.wide
        return (narrow.exact, narrow.width_sum) != (wide.exact, wide.width_sum)


def run(study: Study) -> int:
    """Replay all captures, write the page and print it; return the exit status."""
    folders = captures_in(study.traces) or captures_in(FIXTURES)
    lines = page({mode: [pair(folder, mode) for folder in folders] for mode in MODES})
    (study.folder / "narrowing.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


def pair(folder: Path, mode: str) -> Pair:
    """Replay one capture with narrowing and without it."""
    capture = read_capture(folder)
    if mode.endswith("untold"):
        capture = without_function(capture)
    keys, full_reports = MODES[mode], capture.name in FULL_REPORTS
    return Pair(
        replay(capture, ReplayOptions(keys=keys, full_reports=full_reports)),
        replay(capture, WideReplay(keys=keys, full_reports=full_reports)),
    )


def without_function(capture: Capture) -> Capture:
    """Return a capture whose engine's hash function nobody has configured."""
    return replace(capture, engine=replace(capture.engine, hash_algo=None, hash_seed=None))


def page(pairs: Mapping[str, Sequence[Pair]]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# What narrowing adds",
        "",
        "Written by `make study ONLY=narrowing`; do not edit by hand. Recorded lives of vLLM are",
        "replayed with limbo's narrowing and without it. `auto, untold` is `auto` where the",
        "operator has not configured the engine's hash function. `width` is the mean of",
        "upper - lower in tokens, and `outside` counts the answers whose bounds do not hold the",
        "truth, because the engine had not told yet. Below the sum of each way of placing stand",
        "the captures that differ.",
        "",
        "| keys | captures | requests | exact, % | without | width | without | wider by |"
        " outside | without |",
        "|---|---|" + "--:|" * 8,
        *(line for mode, found in pairs.items() for line in rows(mode, found)),
    ]


def rows(mode: str, pairs: Sequence[Pair]) -> Iterator[str]:
    """Return the row of all captures, and those of the captures that differ."""
    yield row(mode, whole(pairs))
    yield from (row(mode, each) for each in pairs if each.differs)


def whole(pairs: Sequence[Pair]) -> Pair:
    """Return the sums over all captures."""
    name = f"all {len(pairs)}"
    return Pair(
        total([each.narrow for each in pairs], name), total([each.wide for each in pairs], name)
    )


def row(mode: str, found: Pair) -> str:
    """Return a row of the table."""
    narrow, wide = found.narrow, found.wide
    grown = 100 * (wide.width_sum / narrow.width_sum - 1) if narrow.width_sum else None
    cells = (
        mode,
        narrow.capture,
        f"{narrow.requests:,}",
        *(f"{report.exact_pct:.2f}" for report in (narrow, wide)),
        *(f"{report.width_sum / report.requests:.1f}" for report in (narrow, wide)),
        "-" if grown is None else f"{grown:.1f} %",
        *(str(report.requests - report.bounds_kept) for report in (narrow, wide)),
    )
    return f"| {' | '.join(cells)} |"
