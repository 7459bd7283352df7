"""Bugs of the mover: where the bytes of a block go, what is copied in one go, and when."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

MOVING: Final = "python/kvbraid/transfer/mover/moving.py"
RUNS: Final = "python/kvbraid/transfer/mover/runs.py"
CUDART: Final = "python/kvbraid/transfer/mover/cudart.py"
UNIT: Final = "tests/unit/transfer"

OF_MOVER: Final = (
    Mutant(
        "runs-overlap",
        "mover: every run of a block goes to the start of its slot",
        (Edit(MOVING, "np.cumsum(each, dtype=np.uint64) - each", "each - each"),),
        (
            f"{UNIT}/test_worker.py"
            "::test_blocks_of_three_groups_come_back_from_a_tier_as_they_were",
        ),
    ),
    Mutant(
        "joined-across-pieces",
        "mover: one copy crosses from a piece of pinned memory into the next",
        (Edit(RUNS, "(is_elsewhere, found[1:] != found[:-1])", "(is_elsewhere, False)"),),
        (f"{UNIT}/test_runs.py::test_no_row_crosses_from_one_region_into_the_next",),
    ),
    Mutant(
        "stored-before-computed",
        "mover: a store may read its blocks before the device has written them",
        (Edit(CUDART, "Kind.STORE: _IN_STREAM_ORDER", "Kind.STORE: _IN_ANY_ORDER"),),
        (f"{UNIT}/test_cudart.py::test_one_call_copies_all_runs_with_one_set_of_attributes",),
    ),
)
