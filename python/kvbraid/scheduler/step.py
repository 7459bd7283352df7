"""What passes between a scheduler and its engine: steps, their results, and outputs.

Steps run in the order of their numbers, each one completely after the one before it:

```text
step = scheduler.schedule()           the tables of its requests are those of the cache now
  1  begin `step.loads`               the synchronous ones end before 2
  2  zero `step.work.blocks_to_zero`, then make `step.work.copies` in their order
  3  compute `step.scheduled`
scheduler.update(step, StepResult)    what was sampled, and what the ranks report on loads
```
An engine with two steps in flight calls `schedule` once more before it updates the first one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvbraid.cache import Work
from kvbraid.loads import Load, LoadReport
from kvbraid.recovery.ledger.counts import Counts


class Scheduled(NamedTuple):
    """The tokens of one request that one step computes.

    Attributes:
        request: The request.
        run: 0, and one more each time that the request gives its blocks back or is rewound.
        start: The first token. With two steps in flight, every draft of the first one counts as
            accepted: the device starts as many tokens earlier as it has rejected.
        num_tokens: The tokens, drafts included.
        num_drafts: The last ones of them, which the device itself proposes.
        samples: The step computes all known tokens, so it samples one more than the drafts that
            are accepted. If not, the step is a part of a prompt.
    """

    request: int
    run: int
    start: int
    num_tokens: int
    num_drafts: int
    samples: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the device does next. A step may compute nothing: it begins loads, or has outputs."""

    number: int
    scheduled: tuple[Scheduled, ...]
    loads: tuple[Load, ...]
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came of a step.

    Attributes:
        tokens: For each scheduled request that samples, its new tokens: the accepted drafts, then
            one more. Requests that have ended or started over since may be left out.
        reports: What the ranks say about loads; about the step's synchronous ones, all ranks.
    """

    tokens: Mapping[int, Sequence[int]] = field(default_factory=dict)
    reports: Sequence[LoadReport] = ()


class Finish(StrEnum):
    """Why a request has ended; `Output.error` says more of an error."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class Output(NamedTuple):
    """What came of one request.

    Attributes:
        request: The request.
        tokens: New tokens.
        finish: Why the request has ended; None while it goes on.
        error: What went wrong: `load_failed`, `tainted_output` or `out_of_blocks`.
        prompt: Where the prompt's tokens came from; with the first tokens, or at an end without.
        num_recomputed: Tokens that recoveries took back; told when the request ends.
    """

    request: int
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    error: str | None = None
    prompt: Counts | None = None
    num_recomputed: int = 0
