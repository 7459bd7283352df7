"""What passes between a scheduler and its engine: steps, results, reports on loads, outputs.

Plain data. Steps run in the order of their numbers, each one completely after the one before it:

```text
step = scheduler.schedule()           the tables of its requests are those of the cache now
  1  begin `step.loads`               the synchronous ones end before 3
  2  make `step.work.copies` in their order, and zero `step.work.blocks_to_zero`
  3  compute `step.scheduled`
scheduler.update(step, StepResult)    what was sampled, and what the ranks report on loads
```
An engine with two steps in flight calls `schedule` once more before it updates the first one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvbraid.cache import Work
from kvbraid.ids import BlockId
from kvbraid.recovery.failures import Failures, Record


class Scheduled(NamedTuple):
    """The tokens of one request that one step computes.

    The tokens are those from `start` to `start + num_tokens`, of which the last `num_drafts` are
    drafts. With two steps in flight `start` counts every draft of the first step as accepted: the
    device starts as many tokens earlier as it has rejected.

    Attributes:
        request: The request.
        run: Which run of the request: 0, and one more after each time it gave its blocks back.
        start: The first token.
        num_tokens: The tokens, drafts included.
        num_drafts: Tokens of them that the device itself proposes.
        samples: The step computes all known tokens, so it samples one more than the drafts that
            are accepted. If not, the step is a part of a prompt.
    """

    request: int
    run: int
    start: int
    num_tokens: int
    num_drafts: int
    samples: bool


class Target(NamedTuple):
    """A block that a load fills: block `position` of the request's table in a group."""

    group: int
    position: int
    block_id: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Blocks that are to be filled from a tier.

    Every rank reports the end of each load in `LoadReport.ended`, whether or not it failed.

    Attributes:
        number: The load's number; loads are numbered in the order in which they are scheduled.
        request: The request that waits for it.
        start: How many tokens come before those that it loads: the hit.
        num_tokens: How many tokens it loads.
        is_async: The request computes nothing before all ranks have reported. A synchronous load
            ends before its own step computes, and is reported with the step's result.
        tier: The name of the tier.
        records: What the tier reads.
        targets: Only the blocks that the rule needs at the end of the load.
    """

    number: int
    request: int
    start: int
    num_tokens: int
    is_async: bool
    tier: str
    records: tuple[Record, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the device does next.

    Attributes:
        number: Steps are numbered from 0.
        scheduled: What is computed, in this order. Empty if the step only begins loads.
        loads: Loads that begin with this step.
        work: What the device does before it computes.
    """

    number: int
    scheduled: tuple[Scheduled, ...]
    loads: tuple[Load, ...]
    work: Work

    @property
    def num_tokens(self) -> int:
        """The tokens that the step computes, drafts included."""
        return sum(part.num_tokens for part in self.scheduled)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What one rank says about loads, whenever it likes, and as often as it likes.

    Attributes:
        rank: The rank, from 0.
        ended: Numbers of loads of which this rank writes no block any more, failed ones included.
        given_up: Numbers of loads that this rank has given up although it may still write: they
            count as failed whole, and their blocks are not used until the rank reports their end.
        failures: What failed, in any form.
    """

    rank: int
    ended: Collection[int] = ()
    given_up: Collection[int] = ()
    failures: Failures = field(default_factory=Failures)


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
    """Why a request has ended."""

    STOP = "stop"
    """It sampled one of its stop tokens."""
    LENGTH = "length"
    """It has as many tokens as it may have."""
    ABORTED = "aborted"
    """The engine aborted it."""
    ERROR = "error"
    """`Output.error` says why."""


class PromptTokens(NamedTuple):
    """Where the tokens of a prompt came from; together they are the prompt.

    `cached` tokens were found in this cache, `external` ones were loaded, `computed` ones were
    computed here.
    """

    cached: int
    external: int
    computed: int


class Output(NamedTuple):
    """What came of one request.

    Attributes:
        request: The request.
        tokens: New tokens that may be handed out.
        finish: Why the request has ended; None while it goes on.
        error: What went wrong: `load_failed`, `tainted_output` or `out_of_blocks`; None otherwise.
        prompt: Where the prompt's tokens came from; only with the first tokens.
    """

    request: int
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    error: str | None = None
    prompt: PromptTokens | None = None
