"""How a scheduler is set up. Frozen data, checked once against the cache that it serves."""

from dataclasses import dataclass
from typing import Literal

from kvbraid.cache import CacheConfig, GroupOptions
from kvbraid.errors import InvalidValueError
from kvbraid.recovery.policy import Policy
from kvbraid.spec import SpecKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """The settings of one engine's scheduler.

    Attributes:
        max_step_tokens: The most tokens that a step computes, drafts included.
        max_running: The most requests that have blocks at once, waiting for loads or not.
        max_steps_in_flight: How many steps may be scheduled and not yet updated: 1 or 2.
        num_lookahead_tokens: Draft tokens that a decoding request computes in each step.
        findable: When the blocks of a request that started with a synchronous load become
            findable: once the load is known to be good, or when they are scheduled. Then recovery
            retracts them. Asynchronous loads are always known to be good first.
        policy: What happens to requests that a failed load affects.
        retries: How often a request may ask the tiers again after loads for it failed, if the
            policy is `retry`; otherwise it never does.
        deadline_steps: For how many steps after its first failure; None: without limit.
        cooldown_failures: After how many failures in a row a tier is not asked for a while.
        cooldown_steps: For how many steps.
        num_ranks: How many ranks load, and report on each load.
        max_refusals: How many refused boundaries a recovery explains for each request.

    Raises:
        InvalidValueError: A number is out of range.
    """

    max_step_tokens: int
    max_running: int = 256
    max_steps_in_flight: int = 1
    num_lookahead_tokens: int = 0
    findable: Literal["computed", "scheduled"] = "computed"
    policy: Policy = Policy.RECOMPUTE
    retries: int = 1
    deadline_steps: int | None = None
    cooldown_failures: int = 3
    cooldown_steps: int = 1_000
    num_ranks: int = 1
    max_refusals: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise InvalidValueError(f"{name} is {value}; expected at least {least}")
        if self.max_steps_in_flight > 2:
            raise InvalidValueError(
                f"max_steps_in_flight is {self.max_steps_in_flight}; expected 1 or 2: a step "
                "needs no more than the step before it in flight"
            )
        if self.findable not in {"computed", "scheduled"}:
            raise InvalidValueError(
                f'findable is {self.findable!r}; expected "computed" or "scheduled"'
            )

    def check(self, config: CacheConfig) -> None:
        """Refuse drafts that the state groups of a cache cannot take back.

        Raises:
            InvalidValueError: A state group keeps too few blocks for drafts, or two steps are in
                flight, the second of which would start from a state that is not known yet.
        """
        options = config.group_options or (GroupOptions(),) * len(config.topology.groups)
        for index, group in enumerate(config.topology.groups):
            if group.kind is not SpecKind.MAMBA or not self.num_lookahead_tokens:
                continue
            if options[index].num_speculative_blocks < self.num_lookahead_tokens:
                raise InvalidValueError(
                    f"group {index} keeps {options[index].num_speculative_blocks} blocks for "
                    f"drafts; num_lookahead_tokens = {self.num_lookahead_tokens} needs as many"
                )
            if self.max_steps_in_flight > 1:
                raise InvalidValueError(
                    f"group {index} has states: with drafts, the next step starts from a state "
                    "that is known only after the step; set max_steps_in_flight = 1"
                )


_LEAST = {
    "max_step_tokens": 1,
    "max_running": 1,
    "max_steps_in_flight": 1,
    "num_lookahead_tokens": 0,
    "num_ranks": 1,
    "max_refusals": 0,
}
