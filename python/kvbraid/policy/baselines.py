"""The published rules of other routers, with their formulas and constants, as policies.

Each sees the same view as our own rule, so a comparison is of the rules alone. Where a router
counts blocks, tokens stand here. `present` is what an index of full attention matches, and thus
what these routers know of a hybrid; none of them has a number for what is resumable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from math import ceil
from typing import ClassVar, Final

from kvbraid.policy.costs import CostOptions, CostRule
from kvbraid.policy.view import FleetView, RankId, RoutingPolicy


class RoundRobin:
    """Each candidate in turn."""

    name: ClassVar[str] = "round_robin"
    slack = 0.0

    def __init__(self) -> None:
        self._turn = 0

    def costs(self, view: FleetView) -> list[float]:
        """Return how many turns each candidate has to wait."""
        self._turn += 1
        return [float((place - self._turn) % len(view)) for place in range(len(view))]


class RandomChoice:
    """Any candidate."""

    name: ClassVar[str] = "random"
    slack = 0.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the same for all."""
        return [0.0] * len(view)


class LeastLoaded:
    """The candidate with the fewest requests in flight."""

    name: ClassVar[str] = "least_loaded"
    slack = 0.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the requests in flight."""
        return [float(running) for running in view.running]


class PowerOfTwo:
    """The less loaded of two that chance draws."""

    name: ClassVar[str] = "power_of_two"
    slack = 0.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the requests in flight of two candidates, and infinity for the others."""
        drawn = set(view.chance.sample(range(len(view)), min(2, len(view))))
        return [
            float(running) if place in drawn else float("inf")
            for place, running in enumerate(view.running)
        ]


@dataclass(frozen=True, slots=True)
class BoundedHash:
    """KubeAI's consistent hash with bounded load (docs/concepts/load-balancing.md).

    The hash of the prompt's beginning names a point on a ring with `replicas` points a candidate;
    the first candidate from there takes it whose requests, with this one, are at most `bound`
    times the mean. KubeAI hashes the first 100 characters, here 25 tokens.
    """

    name: ClassVar[str] = "bounded_hash"
    slack: float = 0.0
    bound: float = 1.25
    replicas: int = 256
    prefix_tokens: int = 25

    def costs(self, view: FleetView) -> list[float]:
        """Return the distance on the ring, and infinity beyond the bound."""
        start = _point(repr([*map(int, islice(view.request.token_ids, self.prefix_tokens))]))
        most = ceil(self.bound * (sum(view.running) + 1) / len(view))
        return [
            _distance(start, _points(rank, self.replicas)) if running + 1 <= most else float("inf")
            for rank, running in zip(view.ranks, view.running, strict=True)
        ]


_RING: Final = 1 << 64


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=4096)
def _points(rank: RankId, replicas: int) -> Sequence[int]:
    return [_point(f"{rank[0]}/{rank[1]}/{number}") for number in range(replicas)]


def _distance(start: int, points: Sequence[int]) -> float:
    return float(min((point - start) % _RING for point in points))


@dataclass(frozen=True, slots=True)
class LlmD:
    """llm-d's default profile: 3 x prefix + 2 x queue + 2 x (1 - usage).

    The prefix counts as the share of the prompt that matches, the queue as its place between the
    longest (0) and the shortest (1). `sticky`, if it is not None, is the gate of
    `prefix-cache-affinity-filter`: only candidates that match such a share are left, unless the
    best of them is expected to answer `penalty_s` later than the best other one, at
    `tokens_per_s` of uncached tokens in flight.
    """

    name: ClassVar[str] = "llm_d"
    slack: float = 0.0
    prefix: float = 3.0
    queue: float = 2.0
    usage: float = 2.0
    sticky: float | None = None
    penalty_s: float = 18.0
    tokens_per_s: float = 15_928.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the negative scores, and infinity for what the gate leaves out."""
        least, most = min(view.waiting), max(view.waiting)
        spread = most - least
        kept = self._kept(view)
        return [
            -self.prefix * present / view.tokens
            - self.queue * ((most - waiting) / spread if spread else 1.0)
            - self.usage * (1 - usage)
            if place in kept
            else float("inf")
            for place, (present, waiting, usage) in enumerate(
                zip(view.present, view.waiting, view.usage, strict=True)
            )
        ]

    def _kept(self, view: FleetView) -> set[int]:
        every = set(range(len(view)))
        if self.sticky is None:
            return every
        sticky = {p for p in every if view.present[p] >= self.sticky * view.tokens}
        others = every - sticky
        if not sticky or not others:
            return every
        first = [tokens / self.tokens_per_s for tokens in view.waiting_tokens]
        later = min(first[p] for p in sticky) - min(first[p] for p in others)
        return every if later > self.penalty_s else sticky


@dataclass(frozen=True, slots=True)
class LlmDGate(LlmD):
    """llm-d with its affinity gate at a match of 80 %."""

    name: ClassVar[str] = "llm_d_gate"
    sticky: float | None = 0.8


@dataclass(frozen=True, slots=True)
class Dynamo:
    """Dynamo's cost in blocks: prefill that is under way or comes, plus what decodes.

    `load_scale` is `prefill_load_scale`; a temperature of 0, Dynamo's default, chooses the least.
    """

    name: ClassVar[str] = "dynamo"
    slack: float = 0.0
    load_scale: float = 1.0
    block_size: int = 16

    def costs(self, view: FleetView) -> list[float]:
        """Return the cost in blocks."""
        return [
            (self.load_scale * max(waiting + view.tokens - present, 0) + running) / self.block_size
            for waiting, present, running in zip(
                view.waiting_tokens, view.present, view.running_tokens, strict=True
            )
        ]


class LMetric:
    """LMetric: tokens to compute, with those that wait, times the batch (arXiv 2603.15202)."""

    name: ClassVar[str] = "lmetric"
    slack = 0.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the product."""
        return [
            float((waiting + view.tokens - present) * (running + 1))
            for waiting, present, running in zip(
                view.waiting_tokens, view.present, view.running, strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class CacheAware:
    """smg's cache_aware: the best match from a share of `threshold` on, else the least load.

    A candidate whose requests exceed the mean by `gap` and by a factor of `factor` is left out.
    """

    name: ClassVar[str] = "cache_aware"
    slack: float = 0.0
    threshold: float = 0.3
    gap: int = 64
    factor: float = 1.5

    def costs(self, view: FleetView) -> list[float]:
        """Return the negative match of candidates that are not overloaded, or the load."""
        mean = sum(view.running) / len(view)
        most = max(mean + self.gap, mean * self.factor)
        best = max(
            (p for p, r in zip(view.present, view.running, strict=True) if r <= most), default=0
        )
        if best < self.threshold * view.tokens:
            return [float(running) for running in view.running]
        return [
            -float(present) if running <= most else float("inf")
            for present, running in zip(view.present, view.running, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class LoadAware:
    """production-stack's `loadaware`: the matching share, less `beta` times the excess load."""

    name: ClassVar[str] = "load_aware"
    slack: float = 0.0
    beta: float = 1.0

    def costs(self, view: FleetView) -> list[float]:
        """Return the negative scores."""
        mean = sum(view.running) / len(view)
        return [
            self.beta * (running - mean) / max(1.0, mean) - present / view.tokens
            for present, running in zip(view.present, view.running, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class FullAttention:
    """What full attention has, less a number of tokens for each request in flight.

    This is `examples/gateway.py` with `present` for `score`: the rule of a router that counts a
    hybrid's full attention alone.
    """

    name: ClassVar[str] = "full_attention"
    slack: float = 0.0
    tokens_per_request: int = 256

    def costs(self, view: FleetView) -> list[float]:
        """Return the negative scores."""
        return [
            float(self.tokens_per_request * running - present)
            for present, running in zip(view.present, view.running, strict=True)
        ]


class Greedy(CostRule):
    """Waiting and prefill alone: exact, and blind to what a choice costs others."""

    name: ClassVar[str] = "greedy"

    def __init__(self) -> None:
        super().__init__(CostOptions(potential=0.0, displacement=0.0, queue=0.0))


BASELINES: Final[Mapping[str, Callable[[], RoutingPolicy]]] = {
    policy.name: policy
    for policy in (
        RoundRobin, RandomChoice, LeastLoaded, PowerOfTwo, BoundedHash, LlmD, LlmDGate, Dynamo,
        LMetric, CacheAware, LoadAware, FullAttention, Greedy,
    )
}  # fmt: skip
"""What makes each baseline, with its published constants, by its name."""
