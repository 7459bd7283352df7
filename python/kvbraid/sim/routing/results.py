"""What came of the requests of one run.

The first quarter of the requests only fills the caches. It counts for bounds alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

WARM_UP: Final = 4
"""One request in so many is not counted, from the start."""


class Served(NamedTuple):
    """One request that got its first token, in seconds and tokens.

    `pod` is the place of its pod, `busy_s` how long its prefill took. `expected` is what the
    router took as reusable when it chose. `lower` and `upper` are what the index promised for that
    moment: if `is_settled` they bind, because nothing happened at the pod since.
    """

    number: int
    pod: int
    came: float
    began: float
    busy_s: float
    num_tokens: int
    cached: int
    expected: int
    lower: int
    upper: int
    is_settled: bool

    @property
    def ttft_s(self) -> float:
        """The seconds from its arrival to its first token."""
        return self.began - self.came + self.busy_s

    @property
    def is_violated(self) -> bool:
        """Whether the index promised something that was not so."""
        return self.is_settled and not self.lower <= self.cached <= self.upper


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy on one workload; times until the first token are in seconds.

    `imbalance` is the work of the pod that had most over the mean. `utilisation` is the work that
    came over the time in which it came, as a share of the pods: above 1 they cannot keep up.
    `overstated_tokens` are those that the router took as reusable and that were not. Of the
    `num_checked` requests that bounds bind, `num_violated` were outside.
    """

    policy: str
    in_flight: bool
    num_requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    prompt_tokens: int
    hit_tokens: int
    expected_tokens: int
    overstated_tokens: int
    imbalance: float
    utilisation: float
    num_checked: int
    num_violated: int

    @property
    def hit_rate(self) -> float:
        """The share of the prompts' tokens that was reused."""
        return self.hit_tokens / self.prompt_tokens

    @property
    def computed_tokens(self) -> int:
        """The tokens that the pods had to compute."""
        return self.prompt_tokens - self.hit_tokens

    def to_json(self) -> dict[str, Any]:
        """Return every field, the hit rate and the computed tokens."""
        rates = {"hit_rate": self.hit_rate, "computed_tokens": self.computed_tokens}
        every = asdict(self) | rates
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in every.items()}


def result_of(served: Sequence[Served], num_pods: int, *, policy: str, in_flight: bool) -> Result:
    """Sum up a run."""
    ordered = sorted(served)
    counted = ordered[len(ordered) // WARM_UP :]
    times = sorted(each.ttft_s for each in counted)
    busy = [0.0] * num_pods
    for each in counted:
        busy[each.pod] += each.busy_s
    came = [each.came for each in counted]
    span = max(came) - min(came)
    return Result(
        policy=policy,
        in_flight=in_flight,
        num_requests=len(counted),
        ttft_mean_s=sum(times) / len(times),
        ttft_p50_s=_quantile(times, 0.5),
        ttft_p90_s=_quantile(times, 0.9),
        ttft_p99_s=_quantile(times, 0.99),
        prompt_tokens=sum(each.num_tokens for each in counted),
        hit_tokens=sum(each.cached for each in counted),
        expected_tokens=sum(each.expected for each in counted),
        overstated_tokens=sum(max(each.expected - each.cached, 0) for each in counted),
        imbalance=max(busy) * num_pods / sum(busy),
        utilisation=sum(busy) / (num_pods * span) if span else float("inf"),
        num_checked=sum(each.is_settled for each in ordered),
        num_violated=sum(each.is_violated for each in ordered),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the least value that so many of them do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
