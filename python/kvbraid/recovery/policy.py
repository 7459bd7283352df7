"""How an engine reacts to a failed load."""

from enum import StrEnum


class Policy(StrEnum):
    """What happens to the requests that a failed load affects."""

    RECOMPUTE = "recompute"
    """They compute again what was lost."""
    RETRY = "retry"
    """They ask a tier again while their budget lasts, and then compute."""
    FAIL = "fail"
    """They end with an error."""
