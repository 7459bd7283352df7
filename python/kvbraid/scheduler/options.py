"""How a scheduler is set up. Frozen data, checked once against the cache that it serves."""

from dataclasses import dataclass
from typing import Final, Literal

from kvbraid.cache import CacheConfig, GroupOptions
from kvbraid.errors import InvalidValueError
from kvbraid.reading import COUNT, POSITIVE_COUNT, check_fields, one_of, whole
from kvbraid.recovery.ledger.state import RecoveryOptions
from kvbraid.spec import SpecKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions(RecoveryOptions):
    """The settings of one engine's scheduler; those of recovery are inherited.

    Attributes:
        max_step_tokens: The most tokens that a step computes, drafts included.
        max_running: The most requests that have blocks at once, waiting for loads or not.
        max_steps_in_flight: How many steps may be scheduled and not yet updated: 1 or 2.
        num_lookahead_tokens: Draft tokens that a decoding request computes in each step.
        findable: When the blocks of a request that started with a synchronous load become
            findable: once the load is known to be good, or when they are scheduled. Then recovery
            retracts them. Asynchronous loads are always known to be good first.

    Raises:
        InvalidValueError: A number is out of range.
    """

    max_step_tokens: int
    max_running: int = 256
    max_steps_in_flight: int = 1
    num_lookahead_tokens: int = 0
    findable: Literal["computed", "scheduled"] = "computed"

    def __post_init__(self) -> None:
        RecoveryOptions.__post_init__(self)
        check_fields(self, _RULES, prefix="")

    def check(self, config: CacheConfig) -> None:
        """Raise InvalidValueError for drafts that state groups cannot take back."""
        options = config.group_options or (GroupOptions(),) * len(config.topology.groups)
        for index, group in enumerate(config.topology.groups):
            kept, drafts = options[index].num_speculative_blocks, self.num_lookahead_tokens
            is_known = drafts <= kept and self.max_steps_in_flight == 1
            if group.kind is SpecKind.MAMBA and drafts and not is_known:
                what = f"group {index} keeps {kept} states for {drafts} drafts, with "
                what += f"{self.max_steps_in_flight} steps in flight at most"
                raise InvalidValueError(f"{what}; expected a state for each draft, and 1 step")


_RULES: Final = {
    "max_step_tokens": POSITIVE_COUNT,
    "max_running": POSITIVE_COUNT,
    "max_steps_in_flight": whole(1, 2),
    "num_lookahead_tokens": COUNT,
    "findable": one_of(("computed", "scheduled")),
}
