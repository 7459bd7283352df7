"""Injects faults into simulations, one after the other, until there are enough.

`python -m tests.ghost.soak --faults 20000` prints how many faults of each cell were injected and
ends with one line of JSON. `--progress FILE` makes it resumable: what was done is written there
now and then, and not done again by the same code; a finished run is forgotten. `--seed N` replays
one case and shows what happened. The exit status is 1 if anything bad happened.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import kvbraid

from tests.ghost.faults import Tally, cells, tier_cells
from tests.ghost.setting import draw_real_setting
from tests.ghost.simulation import Simulation

CHUNK: Final = 25
"""Simulations that one process runs before it reports."""
MOST_BAD: Final = 200
"""Bad outcomes after which nobody wants to see more."""
COUNTERS: Final = ("faults", "tier_faults", "real_faults", "real_blocks")
SHOWN_EVERY: Final = 15.0
"""Seconds between two lines of progress."""


def run_one(seed: int) -> tuple[Tally, str]:
    """Run one simulation; return what was injected, and what went wrong."""
    return _run(Simulation(seed))


def run_real(seed: int) -> tuple[Tally, str]:
    """Run one simulation with real ranks."""
    with TemporaryDirectory(prefix="kvbraid-ghost-") as folder:
        simulation = Simulation(seed, folder=Path(folder))
        try:
            return _run(simulation)
        finally:
            simulation.close()


def real_seeds(first: int) -> Iterator[int]:
    """Yield the seeds from this one on that can be run with real ranks."""
    return (seed for seed in count(first) if draw_real_setting(seed))


def _run(simulation: Simulation) -> tuple[Tally, str]:
    try:
        return simulation.run(), ""
    except Exception as error:  # noqa: BLE001 - a crash is a bad outcome as well
        simulation.tally.bad += 1
        return simulation.tally, f"{type(error).__name__}: {error}"
    except BaseException as error:  # The core's integrity check panics.
        if type(error).__name__ != "PanicException":
            raise
        simulation.tally.bad += 1
        return simulation.tally, f"panic: {error}"


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect what a chunk leaves at its end: in between, looking for it finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@without_collection()
def run_chunk(first: int) -> tuple[Tally, dict[str, str]]:
    """Run simulations, one of them with real ranks; return what went wrong by its replay."""
    tally, wrong = Tally(), {}
    for seed in range(first, first + CHUNK):
        own, problem = run_one(seed)
        tally.add(own)
        if problem:
            wrong[replay(seed)] = problem
    seed = next(real_seeds(first))
    own, problem = run_real(seed)
    tally.add(own)
    if problem:
        wrong[replay(seed, real=True)] = problem
    return tally, wrong


def replay(seed: int, *, real: bool = False) -> str:
    return f"python -m tests.ghost.soak --seed {seed}{' --real' * real}"


def chunks(first: int, processes: int) -> Iterator[tuple[Tally, dict[str, str]]]:
    """Yield the outcome of chunk after chunk, in order."""
    starts = count(first, CHUNK)
    if processes == 1:
        yield from map(run_chunk, starts)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pending = [pool.apply_async(run_chunk, (next(starts),)) for _ in range(2 * processes)]
        while True:
            yield pending.pop(0).get()
            pending.append(pool.apply_async(run_chunk, (next(starts),)))


class Progress:
    """What was done so far, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.tally = Tally()
        self.next_seed = 0
        self.code = code_version()
        known = json.loads(path.read_text()) if path and path.exists() else {}
        if known.pop("code", None) == self.code:
            print(f"continuing {path}", file=sys.stderr)
            self.next_seed = known.pop("next_seed")
            counts = {name: Counter(known[name]) for name in COUNTERS}
            self.tally = Tally(**{**known, **counts})

    def add(self, tally: Tally) -> None:
        self.tally.add(tally)
        self.next_seed += CHUNK

    def save(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_suffix(".new")
            written.write_text(
                json.dumps({"code": self.code, "next_seed": self.next_seed, **vars(self.tally)})
            )
            written.replace(self.path)

    def forget(self) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)


def code_version() -> str:
    """A hash of the package and of the ghost: a run of other code is not continued."""
    digest = sha256()
    for folder in (Path(kvbraid.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.so")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def soak(faults: int, processes: int, progress: Progress) -> Tally:
    """Run cases until so many faults are injected; print what goes wrong and how far it got."""
    began = shown = time.monotonic()
    tally = progress.tally
    if tally.injected >= faults:
        return tally
    for outcome, wrong in chunks(progress.next_seed, processes):
        progress.add(outcome)
        for command, problem in wrong.items():
            print(f"BAD: {problem}\n  {command}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - shown > SHOWN_EVERY or tally.injected >= faults:
            shown = now
            progress.save()
            print(
                f"{tally.injected} of {faults} faults, {tally.cases} cases, {tally.bad} bad, "
                f"{now - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if tally.injected >= faults or tally.bad >= MOST_BAD:
            break
    return tally


def table(tally: Tally) -> str:
    """Return the counts per event, kind and mode, and those of the engine's own tiers."""
    counts = {name: tally.faults[name] for name in cells()}
    counts |= {name: tally.tier_faults[name] for name in tier_cells()}
    counts |= {f"real {name}": number for name, number in sorted(tally.real_faults.items())}
    return "\n".join(f"  {name:46} {count:8}" for name, count in counts.items())


def show(seed: int, *, real: bool) -> None:
    """Replay one simulation, and print all that happens."""
    with TemporaryDirectory(prefix="kvbraid-ghost-") as folder:
        simulation = Simulation(seed, trace=print, folder=Path(folder) if real else None)
        print(simulation.setting)
        try:
            print(simulation.run().line())
        finally:
            simulation.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ghost.soak")
    parser.add_argument("--faults", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--progress", type=Path)
    parser.add_argument("--seed", type=int, help="replay one case")
    parser.add_argument("--real", action="store_true", help="replay it with real ranks")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        show(options.seed, real=options.real)
        return 0
    progress = Progress(options.progress)
    tally = soak(options.faults, options.processes, progress)
    progress.forget()
    print(table(tally))
    print(json.dumps({"faults": tally.line()}))
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
