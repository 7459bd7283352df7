"""Bugs of tiers: where a block is taken from, and what may be stored."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

MATCH_OVER: Final = "crates/core/src/cache/step/match_over.rs"
FINDABLE: Final = "crates/core/src/cache/findable.rs"
UNIT: Final = "tests/unit/cache/test_tiers.py"

OF_TIERS: Final = (
    Mutant(
        "slowest-first",
        "tiers: a block that the pool holds is loaded again from the last tier that has it",
        (
            Edit(
                MATCH_OVER,
                "let pools = self.pools.iter().enumerate();",
                "let pools = self.pools.iter().enumerate().rev();",
            ),
        ),
        (f"{UNIT}::test_a_tier_fills_a_gap_and_the_pool_has_what_comes_after_it",),
    ),
    Mutant(
        "lost-is-findable",
        "tiers: a block is offered for storing though its hash has been forgotten since",
        (Edit(FINDABLE, ".retain(|note| note.is_found(pool) && ", ".retain(|note| "),),
        (f"{UNIT}::test_what_is_no_longer_found_is_not_listed",),
    ),
)
