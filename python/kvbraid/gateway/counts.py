"""What a gateway counts, for its metrics. Counted on the event loop's thread only."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

PASSED_OVER: Final = "passed_over"
"""The kind of a pod's failure of which only this is known: its data plane went on to another."""


@dataclass(slots=True)
class GatewayCounts:
    """GatewayCounts since the start.

    Attributes:
        outcomes: How requests ended: `answered`, `refused`, `client_gone`, `cut`, `shut_down`.
        failures: Failures of pods, by kind.
        retries: How many requests were sent to a pod again.
        unknown: Prompts without tokens, by reason.
        usage: What engines said of reused tokens: `counted`, `not_reported`, `other_prompt`,
            `unknown_prompt`.
        ends: Lines about ends of requests: `reported`, `not_chosen`, `unreadable`.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
