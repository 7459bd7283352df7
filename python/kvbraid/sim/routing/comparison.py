"""What `kvbraid fleet simulate` plays: policies on one workload, fleet and form of arrivals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.models import EngineOptions
from kvbraid.policy import CostRule
from kvbraid.reading import check
from kvbraid.sim.routing.arrivals import PAUSE, RATE, Arrivals, ClosedLoop, OpenLoop
from kvbraid.sim.routing.fleet import POLICIES, RoutingRule, simulate
from kvbraid.sim.routing.loads import LOAD, POOL, idle_rate, pool_blocks, rate_of
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet, SimulatedPod
from kvbraid.sim.routing.results import Result
from kvbraid.sim.routing.workloads import Workload
from kvbraid.sim.traces.memory_size import parse_size
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.policies import retention_of
from kvbraid.sim.traces.simulation import Progress

BLIND: Final = frozenset({"round_robin", "random", "least_loaded", "power_of_two", "bounded_hash"})
"""Policies that do not look at caches, so what is in flight there makes no difference to them."""

DEFAULT_LOAD: Final = 0.8
_RULES: Final = {
    "pool": POOL,
    "rate": RATE,
    "load": LOAD,
    "think_s": PAUSE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """What to compare, and on what.

    The pool of a pod is `num_blocks`, or the blocks of `memory` on a rank (as people write it), or
    its part of a share `pool` of the working set. Requests come at a `rate` a second, or at the
    rate of a `load`, or from so many `users` who think for `think_s`. No policy means all.
    """

    model: str = "llama-3.1-8b"
    num_pods: int = 8
    policies: Sequence[str] = ()
    num_blocks: int | None = None
    memory: str | None = None
    pool: float | None = None
    rate: float | None = None
    load: float | None = None
    users: int | None = None
    think_s: float = 10.0
    retention: str = "interval-0"
    delay_s: float = 0.02
    loss: float = 0.0
    seed: int = 1
    engine: EngineOptions = EngineOptions()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        """Refuse two answers to one question."""
        for name, rule in _RULES.items():
            if (value := getattr(self, name)) is not None:
                check(name, value, rule)
        self._check_one(("num_blocks", "--blocks"), ("memory", "--memory"), ("pool", "--pool"))
        self._check_one(("rate", "--rate"), ("load", "--load"), ("users", "--users"))

    def _check_one(self, *options: tuple[str, str]) -> None:
        given = [shown for name, shown in options if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidValueError(f"{' and '.join(given)} exclude each other; give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One workload on one fleet, and the rules to compare."""

    work: Workload
    fleet: SimulatedFleet
    rules: Sequence[RoutingRule]
    options: ComparisonOptions

    @classmethod
    def of(cls, read: Callable[[], Workload], options: ComparisonOptions) -> "Comparison":
        """Check the options, then read the workload.

        Raises:
            TraceError: The trace cannot be read.
            InvalidValueError: An option cannot be what it is, or a pool is too small.
            TooLargeError: A pod's pool cannot hold a prompt.
            UnknownError: There is no such model, policy, retention or workload.
        """
        rules = [rule for name in options.policies or POLICIES for rule in _rules(name)]
        model = simulated_model(options.model, options.engine)
        retention = retention_of(options.retention, model)
        work = read()
        fleet = SimulatedFleet(
            model=model,
            num_blocks=_num_blocks(options, model, work),
            num_pods=options.num_pods,
            pace=Pace.of_model(model),
            retention=retention,
            delay_s=options.delay_s,
            loss=options.loss,
        )
        SimulatedPod(PodId("any"), fleet).check_fits(max(ask.num_tokens for ask in work.asks))
        return cls(work=work, fleet=fleet, rules=rules, options=options)

    def arrivals(self, progress: Progress | None = None) -> Arrivals:
        """Return how requests come; a load takes several runs of the rule of kvbraid to find.

        Raises:
            InvalidValueError: The rate, the load or the number of users is out of range.
        """
        options = self.options
        if options.users is not None:
            return ClosedLoop(users=options.users, think_s=options.think_s)
        if options.rate is not None:
            return OpenLoop(options.rate)
        load = DEFAULT_LOAD if options.load is None else options.load
        guess = idle_rate(self.work, self.fleet.pace, load=load, num_pods=self.fleet.num_pods)
        rule = RoutingRule.named(CostRule.name)

        def utilisation(rate: float) -> float:
            return self.play(rule, OpenLoop(rate), progress).utilisation

        return OpenLoop(rate_of(load, utilisation, guess=guess))

    def play(
        self, rule: RoutingRule, arrivals: Arrivals, progress: Progress | None = None
    ) -> Result:
        """Play one rule."""
        seed = self.options.seed
        return simulate(self.work, self.fleet, arrivals, rule, seed=seed, progress=progress)


def _rules(name: str) -> list[RoutingRule]:
    """Return a policy with what is in flight, and with events alone if that makes a difference."""
    counts = (True,) if name in BLIND else (True, False)
    return [RoutingRule.named(name, in_flight=in_flight) for in_flight in counts]


def _num_blocks(options: ComparisonOptions, model: SimulatedModel, work: Workload) -> int:
    if options.num_blocks is not None:
        return options.num_blocks
    if options.memory is not None:
        return model.num_blocks(parse_size(options.memory))
    share = 1.0 if options.pool is None else options.pool
    return pool_blocks(work, model, share=share, num_pods=options.num_pods)
