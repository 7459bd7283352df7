"""Simulations whose ranks are real: bytes of pools, arenas and files are compared in every tick.

Ten of them in each of four tests; the soak runs one of them beside every 25 in memory.
"""

import hashlib
from itertools import islice
from pathlib import Path

import pytest
from kvbraid.transfer.jobs import Kind

from tests.ghost.faults import Tally
from tests.ghost.real.tier import BREAKAGES
from tests.ghost.simulation import Simulation
from tests.ghost.soak import real_seeds, replay, run_real

SIMULATIONS = 10


@pytest.mark.parametrize("first", [0, 2_000, 3_000, 4_000])  # Each has copies, which are rare.
def test_what_comes_back_from_files_and_host_memory_is_what_was_stored(first: int) -> None:
    tally = Tally()
    for seed in islice(real_seeds(first), SIMULATIONS):
        own, problem = run_real(seed)
        assert not problem, f"{problem}\n{replay(seed, real=True)}"
        tally.add(own)
    assert all(tally.real_blocks[kind] for kind in Kind), "some kind of job never moved a block"
    damages = [each for each in BREAKAGES[Kind.WRITE] if tally.real_faults[f"write {each}"]]
    assert len(damages) >= 5, f"of what can happen to a file, only {damages} has happened"
    copies = sum(tally.real_faults[f"{kind} half done"] for kind in Kind)
    assert copies, "no copy has ended half done"


def test_threads_leave_a_seed_as_it_is(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "another")


def fingerprint(folder: Path) -> str:
    """Of all that happens in some simulations."""
    lines: list[str] = []
    for seed in islice(real_seeds(0), 4):
        simulation = Simulation(seed, trace=lines.append, folder=folder / str(seed))
        tally = simulation.run()
        simulation.close()
        lines.append(f"{tally}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
