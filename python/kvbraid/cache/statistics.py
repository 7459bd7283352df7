"""The counts that an engine publishes about its cache, since they were last taken."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from kvbraid.cache.policy_choice import PolicyChoice


class Starts(NamedTuple):
    """Requests that began to run: their number, their tokens at that time, and those reused."""

    num_requests: int
    num_tokens: int
    num_hit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts since the last take. A request starts with its first successful `allocate`.

    Attributes:
        started: Requests that ran for the first time: a prefix hit rate is
            `num_hit_tokens / num_tokens`.
        resumed: Requests that ran again after `preempt`. They are counted separately because they
            mostly hit their own blocks.
        num_matches: Calls of `match`, repeated calls for waiting requests included.
        num_external_tokens: Tokens of starting requests that were computed elsewhere.
        num_junctions: Starting requests that branch off after their hit.
        num_preemptions: Running requests that gave their blocks back.
        num_recoveries: Calls of `recover` that were not refused.
        num_rewound_tokens: Computed tokens that were taken back in place, by `recover` or
            `tables.rewind`. What preempted requests compute again shows in `resumed`.
        num_held_blocks: References that the caller took with `pool.hold` or `recover`, so that
            blocks are not reused, for example while a transfer may still write them.
        num_allocated_blocks: Blocks that were handed out.
        num_evicted_blocks: Blocks that were handed out and had been findable until then.
        num_dropped_blocks: Blocks that are no longer findable because their step never ran: their
            request gave them back before `take_work`, or the step failed.
        policy_choice: The policy of retention by value, and what it gains; None under other
            retentions and if the policy is fixed. This is not a count.
    """

    started: Starts
    resumed: Starts
    num_matches: int
    num_external_tokens: int
    num_junctions: int
    num_preemptions: int
    num_recoveries: int
    num_rewound_tokens: int
    num_held_blocks: int
    num_allocated_blocks: int
    num_evicted_blocks: int
    num_dropped_blocks: int
    policy_choice: PolicyChoice | None = None

    @classmethod
    def of(
        cls,
        started: tuple[int, int, int],
        resumed: tuple[int, int, int],
        rest: Sequence[int],
        policy_choice: PolicyChoice | None = None,
    ) -> Self:
        """Return the counts of the native core; `rest` has them in the order of the fields."""
        names = [field.name for field in fields(cls)][2:-1]
        counts: dict[str, Any] = dict(zip(names, rest, strict=True))
        each: dict[str, Any] = {"started": Starts(*started), "resumed": Starts(*resumed)}
        return cls(**each, **counts, policy_choice=policy_choice)
