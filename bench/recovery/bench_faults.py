"""How many faults can be injected before the first bad outcome?

A bad outcome is a wrong or stale read, a lost token, a leak, a livelock, a wrong counter, or a
call that fails. The simulated engines and their faults are those of `make soak-recovery`, in the
order of their seeds. `KVBRAID_BENCH_FAULTS` says after how many to stop. There is no rival.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from bench.harness.measure import Row, Sample, Target
from tests.ghost.faults import Tally
from tests.ghost.soak import chunks

ENOUGH = int(os.environ.get("KVBRAID_BENCH_FAULTS", "60000"))


def injected() -> float:
    """Inject faults until one does harm, or there are enough."""
    tally = Tally()
    for outcome, wrong in chunks(0, os.cpu_count() or 1):
        for command, problem in wrong.items():
            print(f"{problem}: {command}", file=sys.stderr, flush=True)
        if wrong:
            break
        tally.add(outcome)
        if tally.injected >= ENOUGH:
            break
    return tally.injected


@contextlib.contextmanager
def side() -> Iterator[Sample]:
    """Count once: the same seeds give the same faults."""
    yield injected


ROWS = (
    Row(
        name="faults",
        question="faults injected into simulated engines before the first bad outcome",
        unit="faults",
        ours=side,
        samples=1,
        larger_is_better=True,
        target=Target(least=50_000),
    ),
)
