"""20 000 faults in `make test`; `make soak-recovery` injects a million in the same way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ghost.faults import cells
from tests.ghost.slice import FALSE_ALARMS
from tests.ghost.soak import replay, run_one

ROOT = Path(__file__).resolve().parents[2]
SLICES = 10
FAULTS = 2_000  # In each slice.


def inject(first_seed: int) -> dict[str, int]:
    """The faults of a slice, by cell."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ghost.slice", str(first_seed), str(FAULTS)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    faults: dict[str, int] = json.loads(done.stdout)
    return faults


def test_no_fault_lets_garbage_out_or_loses_a_token() -> None:
    faults = inject(0)
    missing = [name for name in cells() if not faults.get(name)]
    # A few cells have one fault in a thousand.
    assert len(missing) <= 5, f"no fault of {missing}"


@pytest.mark.parametrize("part", range(1, SLICES))
def test_nor_do_others(part: int) -> None:
    assert sum(inject(part * 1_000_000).values()) >= FAULTS


# Not strict: under some hash seeds this seed does something else.
@pytest.mark.xfail(reason="the copy that a look-up finds is taken for the run's own", strict=False)
@pytest.mark.parametrize("seed", sorted(FALSE_ALARMS))
def test_a_healthy_copy_of_what_a_window_gave_back_is_left_alone(seed: int) -> None:
    _, problem = run_one(seed)
    assert not problem, replay(seed)
