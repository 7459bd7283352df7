"""What to do when loads fail: which blocks are tainted, and where each request resumes.

In reading order: `decision` is pure, from runs and failures to a plan; `document` is a decision as
JSON; `ledger` is what an engine remembers between reports. Nothing here reads a clock, does I/O or
starts a thread.
"""

from kvbraid.loads import Failures
from kvbraid.recovery.decision.assess import assess
from kvbraid.recovery.decision.assessment import Assessment, Ignored, Verdict
from kvbraid.recovery.decision.decide import decide
from kvbraid.recovery.decision.plan import Action, RecoveryPlan, RequestPlan
from kvbraid.recovery.decision.policy import Policy
from kvbraid.recovery.decision.run import GivenBack, Run
from kvbraid.recovery.decision.snapshot import (
    HeldState,
    Place,
    RunTables,
    Snapshot,
    snapshot_of,
)
from kvbraid.recovery.document.document import State, read, write

__all__ = [
    "Action",
    "Assessment",
    "Failures",
    "GivenBack",
    "HeldState",
    "Ignored",
    "Place",
    "Policy",
    "RecoveryPlan",
    "RequestPlan",
    "Run",
    "RunTables",
    "Snapshot",
    "State",
    "Verdict",
    "assess",
    "decide",
    "read",
    "snapshot_of",
    "write",
]
