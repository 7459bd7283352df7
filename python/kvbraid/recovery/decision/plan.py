"""The decision: what to do with every affected request, with the cache and with the tiers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from kvbraid.cache.failed_loads import Recovery
from kvbraid.cache.tables import Refusal
from kvbraid.ids import BlockId
from kvbraid.loads import Record
from kvbraid.recovery.decision.assessment import Ignored


class Action(StrEnum):
    """What happens to an affected request."""

    REWIND = "rewind"
    """It keeps its blocks and computes again from `resume` on, once what it waits for is there."""
    START_OVER = "start_over"
    """It gives its blocks back, and matches again: at least `resume` tokens are still findable
    unless they are evicted meanwhile."""
    FAIL = "fail"
    """It ends with an error, because the policy says so."""
    TAINTED_OUTPUT = "tainted_output"
    """It ends with an error under every policy: a token computed from garbage was handed out."""

    @property
    def ends(self) -> bool:
        """Whether the request ends."""
        return self is Action.FAIL or self is Action.TAINTED_OUTPUT


class RequestPlan(NamedTuple):
    """What happens to one request. Hundreds are made at once: a tuple is made fastest.

    Attributes:
        request: The request.
        action: What happens.
        resume: Tokens that need not be computed again.
        recompute: Tokens that were held before the failed step and are computed again, or loaded
            again: those between `resume` and the processed tokens. Counted once, whatever the
            number of groups.
        num_dropped_tokens: Tokens scheduled in steps in flight, whose outputs are dropped.
        owner_of: Shared blocks that this request alone writes again.
        waits_for: Shared blocks that another request writes first, with that request.
        refused: Larger boundaries, and why each was refused.
    """

    request: int
    action: Action
    resume: int
    recompute: int
    num_dropped_tokens: int
    owner_of: tuple[BlockId, ...] = ()
    waits_for: Mapping[BlockId, int] = MappingProxyType({})
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """A decision. It changes nothing until it is applied.

    Attributes:
        requests: One per affected request, ordered by request.
        tainted: Blocks with garbage: no tier may store or keep them, no cache may find them.
        recovery: What `CacheManager.recover` does in one step. The blocks that it holds are the
            quarantine.
        drop: Records that are no good.
        back_off: Records that stay, at tiers that are not asked for a while.
        ignored: Parts of the report that did not count, by reason.
        lost: Former contents that were garbage: see `assess`.
        told: Requests that were handed out a token computed from garbage by a run that has ended.
            Who of them goes on ends with `TAINTED_OUTPUT`, whatever `requests` has for it.
    """

    requests: Mapping[int, RequestPlan] = field(default_factory=dict)
    tainted: tuple[BlockId, ...] = ()
    recovery: Recovery = field(default_factory=Recovery)
    drop: tuple[Record, ...] = ()
    back_off: tuple[Record, ...] = ()
    ignored: Mapping[Ignored, int] = field(default_factory=dict)
    lost: tuple[BlockId, ...] = ()
    told: tuple[int, ...] = ()

    def garbage(self, former: Sequence[BlockId], num_blocks: int) -> set[BlockId]:
        """Return the blocks that hold garbage, and those that held some before they were handed
        out again; `former` and the number of blocks as in `assess`."""
        return {*self.tainted, *(former[number - num_blocks] for number in self.lost)}

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens that all affected requests that go on compute or load again."""
        return sum(plan.recompute for plan in self.requests.values() if not plan.action.ends)
