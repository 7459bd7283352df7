"""A plan is applied: to the cache in one step, then to the ledger of held blocks and the tiers."""

from dataclasses import replace

from kvbraid.cache import CacheManager
from kvbraid.recovery.plan import RecoveryPlan
from kvbraid.recovery.quarantine import Quarantine
from kvbraid.recovery.tiers import Tiers
from kvbraid.recovery.transfers import Transfers


def apply(
    plan: RecoveryPlan,
    cache: CacheManager,
    tiers: Tiers,
    quarantine: Quarantine,
    transfers: Transfers,
) -> None:
    """Do what a plan says, except what an engine has to do with its own requests.

    Blocks that a rank may still write are held once, by whatever plan, until it reports the end.

    Raises:
        KvbraidError: The cache refuses the recovery, as `CacheManager.recover` says. Nothing has
            changed.
    """
    hold = [block for block in plan.recovery.hold if block not in quarantine.blocks]
    cache.recover(replace(plan.recovery, hold=hold))
    writers = transfers.writers
    for number in sorted({writers[block] for block in hold}):
        blocks = [block for block in hold if writers[block] == number]
        quarantine.add(number, blocks, transfers.pending(number))
    if plan.tainted:
        tiers.forget_blocks(plan.tainted)
    for record in plan.drop:
        tiers.drop(record)
    for record in plan.back_off:
        tiers.back_off(record)
