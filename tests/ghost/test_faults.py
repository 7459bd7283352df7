"""20 000 faults in `make test`; `make soak-recovery` injects a million in the same way."""

import pytest

from tests.ghost.faults import Tally, cells
from tests.ghost.soak import replay, run_one

FALSE_ALARMS = {5000194}
"""Known seeds in which a healthy request ends with `tainted_output`.

Where blocks are findable when they are scheduled, what a window has given back is looked up by
hash, and the copy that is found may be a healthy one, of a run that has left (docs/recovery.md).
"""
SLICES = 10
FAULTS = 2_000  # In each slice.


def inject(first_seed: int) -> Tally:
    tally, seed = Tally(), first_seed
    while tally.injected < FAULTS:
        if seed in FALSE_ALARMS:
            seed += 1
            continue
        own, problem = run_one(seed)
        assert not problem, f"{problem}\n{replay(seed)}"
        tally.add(own)
        seed += 1
    return tally


def test_no_fault_lets_garbage_out_or_loses_a_token() -> None:
    tally = inject(0)
    missing = [name for name in cells() if not tally.faults[name]]
    # A few cells have one fault in a thousand.
    assert len(missing) <= 5, f"no fault of {missing}"


@pytest.mark.parametrize("part", range(1, SLICES))
def test_nor_do_others(part: int) -> None:
    assert inject(part * 1_000_000).injected >= FAULTS


@pytest.mark.xfail(reason="the copy that a look-up finds is taken for the run's own", strict=True)
@pytest.mark.parametrize("seed", sorted(FALSE_ALARMS))
def test_a_healthy_copy_of_what_a_window_gave_back_is_left_alone(seed: int) -> None:
    _, problem = run_one(seed)
    assert not problem, replay(seed)
