"""A ghost engine whose loads are planned by a test, request by request, and then spoiled.

A step runs when its output is used: a test looks at a load that has begun, chooses which of its
blocks go wrong, and says when that is reported.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from kvbraid.spec import GroupSpec, SpecKind

from tests.reference import resume
from tests.vllm.drop_in_pair import config_of
from tests.vllm.engines import Layout
from tests.vllm.recovery.ghost_connector import Load
from tests.vllm.recovery.ghost_engine import GhostEngine
from tests.vllm.recovery.ghost_worker import Part, prefix_hashes, truth

MAX_TOKENS: Final = 4
NUM_TOKENS: Final = 400


@dataclass(frozen=True, slots=True)
class Mix(Layout):
    """Groups and pool, which of them a draft head has, and what is kept."""

    eagle: frozenset[int] = frozenset()
    retention: int | None = 0
    loads_whole_blocks: bool = True

    def cache(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        made = config_of(*self.groups, num_blocks=self.num_blocks, retention=self.retention)
        for group in self.eagle:
            made.kv_cache_groups[group].is_eagle_group = True
        return made


class Scheduled(NamedTuple):
    """What a step had of one request, in tokens."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a step's output says of loads: blocks that failed, requests whose loads have ended."""

    blocks: set[int] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


class RebuiltEngine(GhostEngine):
    """`loads` are those under way or done in a step, `spoiled` the blocks that get garbage.

    `history` has every step; `since` is where it was marked.
    """

    def __init__(self, mix: Mix, *, is_async: bool = False) -> None:
        super().__init__(mix, is_async=is_async)
        # Where a step may end inside a prompt with states.
        self.scheduler.cache_config.block_size = mix.alignment
        self.cache = self.scheduler.kv_cache_manager.cache
        self.topology = self.cache.config.topology
        self.plan: dict[str, list[tuple[int, bool]]] = {}
        self.made: list[Any] = []
        self.loads: dict[str, Load] = {}
        self.spoiled: set[int] = set()
        self.history: list[list[Scheduled]] = []
        self.since = 0
        self._todo: deque[tuple[Any, list[Load]]] = deque()
        self._ending: set[str] = set()
        self.connector.offer = self._offer
        self.worker.fails = self._fails
        self.worker.ends = lambda load: load.request in self._ending

    @property
    def groups(self) -> Sequence[GroupSpec]:
        groups: Sequence[GroupSpec] = self.topology.groups
        return groups

    def request(self, prompt: Sequence[int], *loads: tuple[int, bool]) -> Any:  # noqa: ANN401 - vLLM's own type.
        """Add a request; each of its loads reaches to a token, and the request waits or not."""
        made = self.add(list(prompt), MAX_TOKENS)
        self.plan[made.request_id] = list(loads)
        self.made.append(made)
        return made

    def _offer(self, request: Any, hit: int) -> tuple[int, bool]:  # noqa: ANN401 - vLLM's own type.
        plan = self.plan.get(request.request_id)
        if not plan or plan[0][0] <= hit:
            return 0, False
        end, waits = plan[0]
        return end - hit, waits

    def _fails(self, load: Load, parts: list[Part]) -> list[Part]:
        del load
        return [part for part in parts if part.block in self.spoiled]

    # Steps.

    def schedule(self) -> None:
        """Schedule a step."""
        output = self.scheduler.schedule()
        loads, self.connector.loads = self.connector.loads, []
        for load in loads:
            self.loads[load.request] = load
            self.plan[load.request].pop(0)
        self._todo.append((output, loads))
        cached = output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self.history.append(
            [
                Scheduled(name, starts[name], starts[name] + count)
                for name, count in output.num_scheduled_tokens.items()
            ]
        )

    def use(self, report: Report | None = None) -> None:
        """Run the oldest step, and use its output, with a report."""
        report = report or Report()
        output, loads = self._todo.popleft()
        self._ending = report.ended
        result = self.worker.execute(output, loads)
        result.kv_connector_output.invalid_block_ids = set(report.blocks)
        self._steps.append((output, result))
        self.process()
        if not self._todo:
            self.check_cache()

    def run(self, most: int = 200) -> None:
        """Go on until nothing is left to do; loads that wait end well. Check what was told."""
        for _ in range(most):
            if not self.scheduler.requests:
                break
            self.schedule()
            while len(self._todo) >= self._depth:
                waiting = {load.request for load in self.worker.loading}
                waiting |= {load.request for load in self._todo[0][1] if load.is_async}
                self.use(Report(ended=waiting))
        assert not self.scheduler.requests, f"{list(self.scheduler.requests)} do not end"
        while self._todo:
            self.use()
        for name, prompt in self._prompts.items():
            assert self.outputs[name] == truth(prompt, MAX_TOKENS), name
        assert self.cache.pool.num_free == self.cache.config.num_blocks - 1

    # What a test asks.

    def mark(self) -> None:
        self.since = len(self.history)

    def parts_of(self, request: Any) -> list[Scheduled]:  # noqa: ANN401 - vLLM's own type.
        """Return what steps had of a request."""
        return [part for step in self.history for part in step if part.name == request.request_id]

    def start_of(self, request: Any) -> int:  # noqa: ANN401 - vLLM's own type.
        """Return where the first step of a request starts since the mark."""
        return next(
            part.start
            for step in self.history[self.since :]
            for part in step
            if part.name == request.request_id
        )

    def blocks_of(self, request: Any, groups: Iterable[int], tokens: Iterable[int]) -> set[int]:  # noqa: ANN401 - vLLM's own type.
        """Return the blocks that a request's load fills at these tokens, in these groups."""
        wanted = {
            (group, token // self.groups[group].block_size) for group in groups for token in tokens
        }
        parts = self.worker.parts(self.loads[request.request_id])
        return {part.block for part in parts if (part.group, part.position) in wanted}

    def check_cache(self) -> None:
        """Everything that a hash finds was computed or loaded well."""
        unit = resume.hash_block(self.topology)
        known = {}
        for request in self.made:
            hashes = prefix_hashes(request.all_token_ids)
            for index, digest in enumerate(request.block_hashes):
                known[bytes(digest)] = hashes[: (index + 1) * unit + 1]
        for (group, digest), blocks in self.cache.debug.cached().items():
            for block in blocks:
                assert self._is_good(group, block, known[digest]), (group, block)

    def _is_good(self, group: int, block: int, hashes: Sequence[int]) -> bool:
        spec, held, end = self.groups[group], self.worker.blocks.get(block, {}), len(hashes) - 1
        if spec.kind is SpecKind.MAMBA:
            return held.get(end) == hashes[end]
        first = (end - 1) // spec.block_size * spec.block_size
        return all(held.get(token - first) == hashes[token + 1] for token in range(first, end))


def loaded_by(mix: Mix) -> int:
    """Return how many tokens a load brings: 99 of 100 blocks, less what is not aligned."""
    unit = mix.alignment if mix.loads_whole_blocks else mix.unit
    return 396 // unit * unit


def groups_that_fail(mix: Mix) -> Iterable[list[int]]:
    """Every group alone, and all together."""
    everyone = list(range(len(mix.groups)))
    yield from ([group] for group in everyone[: len(everyone) if len(everyone) > 1 else 0])
    yield everyone


def check_untouched(engine: RebuiltEngine, requests: Iterable[Any]) -> None:
    """No token of these requests is computed twice."""
    for request in requests:
        parts = engine.parts_of(request)
        assert all(a.end == b.start for a, b in pairwise(parts)), parts
