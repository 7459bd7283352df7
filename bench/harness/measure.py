"""The definition of a benchmark row, and the sampling of its two sides.

Invariant: both sides of a row run in one process on one machine, their samples alternate, and the
medians are compared. Smaller is better unless a row says otherwise. Nothing in this module knows
what is measured.
"""

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

Sample: TypeAlias = Callable[[], float]
Side: TypeAlias = Callable[[], AbstractContextManager[Sample]]
"""Sets one side up, yields the function that takes one sample, and tears it down."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a row: a least ratio, or a largest or least value of our own figure."""

    ratio: float | None = None
    ours: float | None = None
    least: float | None = None

    def is_met(self, ours: float, ratio: float | None) -> bool | None:
        """Whether the figures reach the target; None if there is no target."""
        if self.ratio is not None:
            return ratio is not None and ratio >= self.ratio
        if self.least is not None:
            return ours >= self.least
        return None if self.ours is None else ours <= self.ours

    def __str__(self) -> str:
        if self.ratio is not None:
            return f"ratio >= {self.ratio:g}"
        if self.least is not None:
            return f"ours >= {self.least:g}"
        return "stated" if self.ours is None else f"ours <= {self.ours:g}"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a row without a clock: small enough for `make test`, with a target of its own."""

    figure: Callable[[], float]
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result: a name, two sides, and the number of samples for each.

    `rival` may be a configuration of our own; `question` then says that the row compares ours with
    ours. `check` asserts, before anything is timed, that both sides do the same work. The figures
    of `beside` are shown with the row and never compared. A row without a clock prints the same
    figures in every run, and tests check its `slice`. `lacks` says which input is not there
    and how to get it: the row is then left out. Empty: nothing is lacking.
    """

    name: str
    question: str
    unit: str
    ours: Side
    rival: Side | None = None
    target: Target = field(default_factory=Target)
    samples: int = 7
    larger_is_better: bool = False
    check: Callable[[], None] | None = None
    beside: dict[str, Side] = field(default_factory=dict)
    lacks: str = ""
    slice: Slice | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The samples of one side."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> str:
        """The smallest and the largest sample, for people."""
        return f"{min(self.samples):.4g} .. {max(self.samples):.4g}"


def counted(count: Callable[[], float]) -> Side:
    """Return a side whose figure is counted, not timed."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        yield count

    return side


def take_samples(row: Row, sides: Iterable[str]) -> dict[str, Figures]:
    """Run the named sides (`ours`, `rival` or a key of `beside`), their samples alternating."""
    chosen = {"ours": row.ours, "rival": row.rival, **row.beside}
    with contextlib.ExitStack() as stack:
        ready = {
            name: stack.enter_context(side())
            for name in sides
            if (side := chosen[name]) is not None
        }
        # As servers do after start: collections then look only at what the samples allocate.
        gc.collect()
        gc.freeze()
        taken: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(row.samples):
            for name, sample in ready.items():
                gc.collect()
                taken[name].append(sample())
    return {name: Figures(tuple(values)) for name, values in taken.items()}


def repeated_us(call: Callable[[], object], *, seconds: float = 0.15) -> Sample:
    """Return a sample: the median wall time of `call` in microseconds over about `seconds`."""

    def sample() -> float:
        times: list[int] = []
        deadline = time.perf_counter() + seconds
        while not times or time.perf_counter() < deadline:
            begin = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times) / 1_000

    call()  # Not measured: first-use costs belong to neither side.
    return sample


def repeated_cpu_us(call: Callable[[], object], *, seconds: float = 0.15) -> Sample:
    """Return a sample: the median CPU time of `call` on this thread, over about `seconds`.

    Other users of a shared machine add little to CPU time. Reading the clock of CPU time takes a
    microsecond, so short calls are timed in batches of half a millisecond.
    """
    call()  # Not measured: first-use costs belong to neither side.
    begin = time.thread_time_ns()
    call()
    batch = max(1, 500_000 // (time.thread_time_ns() - begin))

    def sample() -> float:
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        while not times or time.perf_counter() < deadline:
            begin = time.thread_time_ns()
            for _ in range(batch):
                call()
            times.append((time.thread_time_ns() - begin) / batch)
        return statistics.median(times) / 1_000

    return sample


def cpu_us_of(call: Callable[[], object]) -> float:
    """Run `call`; return the CPU time this process (all threads) spent on it."""
    begin = time.process_time_ns()
    call()
    return (time.process_time_ns() - begin) / 1_000


@contextlib.contextmanager
def before_others() -> Iterator[None]:
    """Let threads that start meanwhile run before all other programs, if this process may.

    Who waits for a lock yields the processor, and on a busy machine others keep it for long.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def process_tree(pid: int) -> list[int]:
    """Return `pid` and all of its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found.extend(int(child) for child in (task / "children").read_text().split())
    return found


def cpu_us_of_process(pid: int) -> float:
    """CPU time that the process and its descendants have used so far, in steps of a clock tick."""
    ticks = 0
    for member in process_tree(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks * 1_000_000 / TICKS_PER_SECOND


def rss_bytes_of_process(pid: int) -> int:
    """Resident memory of the process and its descendants."""
    return sum(
        int(Path(f"/proc/{member}/statm").read_text().split()[1]) * PAGE_BYTES
        for member in process_tree(pid)
    )
