"""The cells that `kvbraid cache simulate` computes for a trace: every policy at every memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kvbraid.cache.retention import Retention
from kvbraid.models import EngineOptions
from kvbraid.sim.traces.memory_size import parse_size
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.policies import CACHE_POLICIES, retention_of
from kvbraid.sim.traces.simulation import HitRate, Progress, check_pool, simulate
from kvbraid.sim.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What to simulate. `memories` are sizes as people write them; no policy means all of them."""

    model: str
    memories: Sequence[str]
    policies: Sequence[str] = ()
    num_requests: int | None = None
    engine: EngineOptions = EngineOptions()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One memory, the policies that are one and the same for this model, and what was reused."""

    memory_bytes: int
    policies: Sequence[str]
    result: HitRate


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is simulated: one trace and one model, `memories` in ascending order."""

    trace: Trace
    model: SimulatedModel
    memories: Sequence[int]
    policies: Mapping[str, Retention]

    @classmethod
    def of(cls, read: Callable[[], Trace], options: GridOptions) -> "Grid":
        """Check the model, memories and policies to simulate, then read the trace.

        Raises:
            TraceError: The trace cannot be read.
            InvalidValueError: A size cannot be read, or a pool would be too small or too large.
            UnknownError: There is no such model or policy.
        """
        model = simulated_model(options.model, options.engine)
        memories = sorted({parse_size(text) for text in options.memories})
        policies = {name: retention_of(name, model) for name in options.policies or CACHE_POLICIES}
        for memory in memories:
            check_pool(model, model.num_blocks(memory))
        trace = read()
        if options.num_requests is not None:
            trace = trace.first(options.num_requests)
        return cls(trace=trace, model=model, memories=memories, policies=policies)

    def alike(self) -> Sequence[Sequence[str]]:
        """Return the names of the policies; names that mean the same retention stand together."""
        names: dict[Retention, list[str]] = {}
        for name, retention in self.policies.items():
            names.setdefault(retention, []).append(name)
        return list(names.values())

    def cases(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield each memory with the names of each different policy."""
        yield from product(self.memories, self.alike())

    def cell(self, memory_bytes: int, policies: Sequence[str], progress: Progress) -> GridCell:
        """Simulate one case."""
        result = simulate(
            self.trace,
            self.model,
            self.model.num_blocks(memory_bytes),
            self.policies[policies[0]],
            progress=progress,
        )
        return GridCell(memory_bytes=memory_bytes, policies=policies, result=result)
