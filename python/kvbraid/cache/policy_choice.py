"""The eviction policy of retention by value, and what each policy would have saved.

These are results. The core decides, from small simulated caches that replay the same requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from kvbraid.cache.retention import EvictionPolicy


class Saved(NamedTuple):
    """What a policy would have saved lately, as a share of the compute of all prompts.

    `interval` is the number of tokens between its regular checkpoints; 0: it has none.
    """

    policy: EvictionPolicy
    interval: int
    share: float

    @property
    def name(self) -> str:
        """A name for tables and metrics, such as `value` or `interval-1024`."""
        is_plain = self.policy is not EvictionPolicy.INTERVAL and not self.interval
        return self.policy.value if is_plain else f"{self.policy.value}-{self.interval}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """What a cache evicts first now, and why.

    Attributes:
        now: The policy that the cache has, and what its simulated cache has saved.
        others: The other policies.
        num_requests: Requests that have ended so far.
        since: How many of them had ended when the policy changed last; 0: it never did.
        num_changes: How often it changed.
    """

    now: Saved
    others: Sequence[Saved]
    num_requests: int
    since: int
    num_changes: int

    @property
    def gains(self) -> Mapping[str, float]:
        """By how much the policy is ahead of each other one lately, as a share of all compute."""
        return {other.name: self.now.share - other.share for other in self.others}

    @classmethod
    def of(
        cls,
        policy: int,
        saved: Sequence[tuple[str, int, float]],
        num_requests: int,
        since: int,
        num_changes: int,
    ) -> Self:
        """Return the answer of the native core; `policy` is an index of `saved`."""
        each = [Saved(EvictionPolicy(name), interval, share) for name, interval, share in saved]
        now = each.pop(policy)
        return cls(
            now=now,
            others=each,
            num_requests=num_requests,
            since=since,
            num_changes=num_changes,
        )
