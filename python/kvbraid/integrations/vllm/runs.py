"""What the schedulers remember of requests, so that a decision knows what their loads filled.

The law: a run starts when a request gets its first blocks, and ends when it gives them back. A run
that ends while its steps are in flight is kept until they are processed, with its block tables as
they were; a block that is handed out again is taken out of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm.v1.request import Request

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.recovery.loading import read_by_copies
from kvbraid.recovery.run import GivenBack, Run
from kvbraid.spec import GroupSpec, SpecKind

_PASSING: Final = frozenset(
    {kind for kind in SpecKind if kind.is_window}
    | {SpecKind.MAMBA, SpecKind.CHUNKED_LOCAL_ATTENTION}
)
"""Kinds whose groups give blocks back while a request runs."""


@dataclass(slots=True)
class Alive:
    """A run that goes on; in tokens.

    Attributes:
        request: vLLM's request.
        number: Its number in the cache: another one for each of its runs.
        num_known_tokens: As in `Run`, like the next three.
        num_local_tokens: The hit.
        num_loaded_tokens: What a load fills after it.
        delays_commit: An asynchronous load whose blocks are not findable yet.
        is_loading: An asynchronous load that has not ended.
        loaded: The loaded blocks of groups that give blocks back while the request runs.
        read: Blocks that its own blocks are copies of: a hit inside a block.
    """

    request: Request
    number: int
    num_known_tokens: int
    num_local_tokens: int
    num_loaded_tokens: int
    delays_commit: bool
    is_loading: bool
    loaded: tuple[GivenBack, ...] = ()
    read: tuple[GivenBack, ...] = ()

    @property
    def num_computed_tokens(self) -> int:
        """The tokens of all steps. A load counts as done before vLLM takes it over."""
        if self.delays_commit:
            return self.num_local_tokens + self.num_loaded_tokens
        return int(self.request.num_computed_tokens)

    @property
    def num_in_flight_tokens(self) -> int:
        """The tokens of this run in steps in flight: steps of an earlier run do not count."""
        request = self.request
        return int(request.num_in_flight_tokens - request.num_stale_output_tokens)

    @property
    def num_processed_tokens(self) -> int:
        """The tokens of steps that have ended."""
        return self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def is_unused(self) -> bool:
        """Whether tokens are loaded, and nothing was scheduled that is computed from them."""
        end = min(self.num_local_tokens + self.num_loaded_tokens, self.request.num_tokens - 1)
        is_used = not self.delays_commit and self.num_computed_tokens > end
        return self.num_loaded_tokens > 0 and not is_used


@dataclass(slots=True)
class _Ended:
    """A run with steps in flight; their tokens are those of the request, earlier runs included."""

    request_id: str
    run: Run
    tables: list[list[BlockId]]
    num_in_flight_tokens: int


class Runs:
    """The runs of one cache."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._alive: dict[str, Alive] = {}
        self._ended: list[_Ended] = []
        self._watched: set[BlockId] = set()  # Blocks that runs gave back, or may give back.

    def start(
        self,
        request: Request,
        number: int,
        *,
        num_local_tokens: int,
        num_loaded_tokens: int,
        delays_commit: bool,
    ) -> Alive:
        """Note that a request got its first blocks."""
        self._alive[request.request_id] = alive = Alive(
            request=request,
            number=number,
            num_known_tokens=request.num_tokens,
            num_local_tokens=num_local_tokens,
            num_loaded_tokens=num_loaded_tokens,
            delays_commit=delays_commit,
            is_loading=delays_commit,
        )
        if num_loaded_tokens:
            alive.loaded = tuple(
                each for each in self.loaded(alive) if self._groups[each.group].kind in _PASSING
            )
            self._watched.update(each.block_id for each in alive.loaded)
        return alive

    @property
    def _groups(self) -> Sequence[GroupSpec]:
        return self._cache.config.topology.groups

    def _loaded_positions(self, alive: Alive) -> Iterable[tuple[int, range]]:
        first = alive.num_local_tokens
        end = first + alive.num_loaded_tokens
        for group, spec in enumerate(self._groups if end > first else ()):
            positions = range(first // spec.block_size, -(-end // spec.block_size))
            yield group, positions[-1:] if spec.kind is SpecKind.MAMBA else positions

    def loaded(self, alive: Alive) -> list[GivenBack]:
        """Return the blocks that a run's load fills, as far as its tables have them."""
        tables = self._cache.blocks(alive.number)
        return [
            GivenBack(group, position, tables[group][position])
            for group, positions in self._loaded_positions(alive)
            for position in positions
            if position < len(tables[group]) and tables[group][position]
        ]

    def find(self, request_id: str) -> Alive | None:
        """Return the run of a request; None if it has no blocks."""
        return self._alive.get(request_id)

    def alive(self) -> Iterable[Alive]:
        """Return all runs that go on."""
        return self._alive.values()

    @property
    def is_watching(self) -> bool:
        """Whether it matters which blocks are handed out."""
        return bool(self._watched)

    def copied(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Note copies that a step begins with, as (source, destination)."""
        if not copies:
            return
        self.hand_out(destination for _, destination in copies)
        by_number = {alive.number: alive for alive in self._alive.values()}
        for number, read in read_by_copies(self._cache.tables, copies):
            if number in by_number:
                by_number[number].read += (read,)
                self._watched.add(read.block_id)

    def end(self, request_id: str) -> None:
        """Note that a request is about to give its blocks back."""
        alive = self._alive.pop(request_id, None)
        if alive is not None and alive.num_in_flight_tokens and not alive.is_loading:
            tables = self._cache.blocks(alive.number)
            in_flight = int(alive.request.num_in_flight_tokens)
            self._ended.append(_Ended(request_id, self._run(alive), tables, in_flight))
            self._watched.update(block for table in tables for block in table)

    def hand_out(self, block_ids: Iterable[BlockId]) -> None:
        """Note that blocks were handed out: what runs that gave them back left in them is gone."""
        new = self._watched.intersection(block_ids)
        if not new:
            return
        for ended in self._ended:
            for table in ended.tables:
                table[:] = [BlockId(0) if block in new else block for block in table]
        for alive in self._alive.values():
            if any(each.block_id in new for each in alive.loaded):
                held = set(self.loaded(alive))
                alive.loaded = tuple(
                    each for each in alive.loaded if each.block_id not in new or each in held
                )
            alive.read = tuple(each for each in alive.read if each.block_id not in new)

    def process(self, num_scheduled_tokens: Mapping[str, int]) -> None:
        """Note that the oldest step was processed; it had these tokens of requests."""
        for ended in self._ended:
            ended.num_in_flight_tokens -= num_scheduled_tokens.get(ended.request_id, 0)
        self._ended = [ended for ended in self._ended if ended.num_in_flight_tokens > 0]
        if (
            self._watched
            and not self._ended
            and not any(alive.loaded or alive.read for alive in self._alive.values())
        ):
            self._watched.clear()

    def cut(self, alive: Alive, resume: int) -> None:
        """Note that a run goes back to `resume` tokens in place; its blocks are findable."""
        end = min(alive.num_local_tokens + alive.num_loaded_tokens, resume)
        alive.num_known_tokens = alive.request.num_tokens
        alive.num_local_tokens = min(alive.num_local_tokens, resume)
        alive.num_loaded_tokens = end - alive.num_local_tokens
        alive.delays_commit = False
        kept = dict(self._loaded_positions(alive))
        alive.loaded = tuple(
            each for each in alive.loaded if each.position in kept.get(each.group, ())
        )

    # What a decision is made from.

    def runs(self) -> list[Run]:
        """Return all runs as the decision takes them; a request is its number in the cache."""
        going_on = [self._run(alive) for alive in self._alive.values()]
        return going_on + [ended.run._replace(ended_tables=ended.tables) for ended in self._ended]

    def numbers_of(self, request_id: str) -> list[int]:
        """Return the runs of a request, those included that are kept."""
        numbers = [each.run.request for each in self._ended if each.request_id == request_id]
        alive = self._alive.get(request_id)
        return numbers if alive is None else [*numbers, alive.number]

    def ended_with(self, block_ids: Iterable[BlockId]) -> set[str]:
        """Return the requests whose ended runs have one of these blocks in their tables."""
        asked = set(block_ids)
        return {
            ended.request_id
            for ended in self._ended
            if any(not asked.isdisjoint(table) for table in ended.tables)
        }

    def _run(self, alive: Alive) -> Run:
        return Run(
            request=alive.number,
            num_tokens=alive.request.num_tokens,
            num_prompt_tokens=alive.request.num_prompt_tokens,
            num_known_tokens=alive.num_known_tokens,
            num_local_tokens=alive.num_local_tokens,
            num_loaded_tokens=alive.num_loaded_tokens,
            num_processed_tokens=alive.num_processed_tokens,
            num_computed_tokens=alive.num_computed_tokens,
            delays_commit=alive.delays_commit,
            given_back=self._given_back(alive),
        )

    def _given_back(self, alive: Alive) -> list[GivenBack]:
        """Return the blocks that it has read and no longer has: loaded ones, sources of copies."""
        tables = self._cache.blocks(alive.number) if alive.loaded else []
        gone = [e for e in alive.loaded if tables[e.group][e.position] != e.block_id]
        return [*gone, *alive.read]
