"""The words of loads, for those who order them, carry them out and recover from them.

In reading order: `failures` is what did not arrive, and why; `tiers` says what a tier is asked and
offers; `load` is what is loaded, and what ranks report; `quarantine` has the blocks that a rank
may still write.
"""

from kvbraid.loads.failures import Cause, Failures, GroupBlock, Record
from kvbraid.loads.load import Load, LoadReport, Target
from kvbraid.loads.quarantine import Quarantine
from kvbraid.loads.tiers import NO_TIERS, LoadTiers, Offer, Query, Tiers

__all__ = [
    "NO_TIERS",
    "Cause",
    "Failures",
    "GroupBlock",
    "Load",
    "LoadReport",
    "LoadTiers",
    "Offer",
    "Quarantine",
    "Query",
    "Record",
    "Target",
    "Tiers",
]
