"""Garbage that was copied before anybody knew: what its copies were loaded into is garbage."""

from collections.abc import Callable, Collection

from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery.decision.plan import RecoveryPlan


def with_copies(
    decided: Callable[[Failures], RecoveryPlan],
    failures: Failures,
    garbage: Callable[[RecoveryPlan], set[BlockId]],
    forget: Callable[[Collection[BlockId]], Failures],
) -> RecoveryPlan:
    """Return the decision about failures, and about all copies of what it calls garbage.

    Args:
        decided: Decides; it changes nothing.
        failures: What failed.
        garbage: Returns the blocks of which a plan says that they hold garbage, or have held some.
        forget: Tells tiers of these blocks, each once, as long as hashes find them:
            `kvbraid.loads.Tiers.forget_blocks`.
    """
    plan, told = decided(failures), set[BlockId]()
    while news := garbage(plan) - told:
        told |= news
        if copied := forget(sorted(news)):
            failures = Failures.union([failures, copied])
            plan = decided(failures)
    return plan
