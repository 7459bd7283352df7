"""What the schedulers remember of requests, so that a decision knows what their loads filled.

The law: a run starts when a request gets its first blocks, and ends when it gives them back. What
counts after that, and for how long, is the law of `kvbraid.recovery.departed`. vLLM does not say
when a synchronous load has ended: that is when the first step of its run is processed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm.v1.request import Request

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.recovery import GivenBack, RecoveryPlan, Run
from kvbraid.recovery.ledger.departed import Departed, Past
from kvbraid.recovery.ledger.loading import read_by_copies, targets_of
from kvbraid.recovery.ledger.open_loads import BEGINNING, Moment
from kvbraid.spec import GroupSpec, SpecKind

_PASSING: Final = frozenset(
    {kind for kind in SpecKind if kind.is_window}
    | {SpecKind.MAMBA, SpecKind.CHUNKED_LOCAL_ATTENTION}
)
"""Kinds whose groups give blocks back while a request runs."""

_IN_FLIGHT: Final = 1 << 62
"""A step that is never processed: vLLM counts what is in flight in tokens."""


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
        load: The number of its load, if there is one.
        since: When it started.
        passing: The blocks of its hit and its load that it has and may give back while it runs.
    """

    request: Request
    number: int
    num_known_tokens: int
    num_local_tokens: int
    num_loaded_tokens: int
    delays_commit: bool
    is_loading: bool
    load: int | None = None
    since: Moment = BEGINNING
    passing: tuple[GivenBack, ...] = ()

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
    """A run that has ended; `num_in_flight_tokens` are those of the request, earlier runs
    included. `is_last`: no later run of the request has started."""

    request: Request
    num_in_flight_tokens: int
    is_last: bool = True


class Runs:
    """The runs of one cache. Reports on a load may come for `late_steps` steps after its end."""

    def __init__(self, cache: CacheManager, late_steps: int) -> None:
        self._cache = cache
        self._alive: dict[str, Alive] = {}
        self._ended: dict[int, _Ended] = {}
        self._departed = Departed(
            cache.config.num_blocks, [group.block_size for group in self._groups], late_steps
        )
        self._num_loads = 0
        self._unproved: dict[str, int] = {}  # Synchronous loads whose step was not processed.

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
        self._told()
        for ended in self._ended.values():
            ended.is_last = ended.is_last and ended.request is not request
        self._alive[request.request_id] = alive = Alive(
            request=request,
            number=number,
            num_known_tokens=request.num_tokens,
            num_local_tokens=num_local_tokens,
            num_loaded_tokens=num_loaded_tokens,
            delays_commit=delays_commit,
            is_loading=delays_commit,
        )
        self._departed.start(number, num_local_tokens + num_loaded_tokens)
        if num_loaded_tokens:
            self._begin(alive)
        if self._num_loads and num_local_tokens + num_loaded_tokens:
            alive.since = self._departed.now
            tables = self._cache.blocks(number)
            hit = [*map(GivenBack._make, targets_of(self._groups, tables, 0, num_local_tokens))]
            groups = self._groups
            hit = [each for each in hit if groups[each.group].kind in _PASSING]
            loaded = [e for e in self.loaded(alive) if groups[e.group].kind in _PASSING]
            alive.passing = (*hit, *loaded)
            self._found(hit)
        return alive

    def _found(self, blocks: Sequence[GivenBack]) -> None:
        if self._departed.is_open:
            infos = self._cache.pool.describe([block.block_id for block in blocks])
            self._departed.found(blocks, [info.author for info in infos])

    def _begin(self, alive: Alive) -> None:
        alive.load = self._num_loads
        self._num_loads += 1
        self._departed.begin(alive.load)
        if not alive.is_loading:
            self._unproved[alive.request.request_id] = alive.load

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
        return self._departed.is_watching

    def copied(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Note copies that a step begins with, as (source, destination)."""
        if not copies or not self.is_watching:
            return
        since = self._departed.now
        self.hand_out([destination for _, destination in copies])
        for number, read in read_by_copies(self._cache.tables, copies):
            self._departed.give_back(number, [read], since)
            self._found([read])

    def hand_out(self, block_ids: Sequence[BlockId]) -> None:
        """Note that blocks were handed out: they hold something new."""
        self._departed.hand_out(block_ids)

    def load_ended(self, request_id: str) -> None:
        """Note that the asynchronous load of a request has ended."""
        alive = self._alive.get(request_id)
        if alive is not None:
            alive.is_loading = False
            self._close(alive)

    def _close(self, alive: Alive) -> None:
        if alive.load is not None:
            self._departed.loads.end(alive.load)

    def end(self, request_id: str) -> None:
        """Note that a request is about to give its blocks back."""
        alive = self._alive.pop(request_id, None)
        if alive is None:
            return
        if alive.is_loading:  # Nobody has read anything of it.
            self._close(alive)
            self._departed.discard(alive.number)
            return
        self._follow(alive)
        run, in_flight = self._run(alive), int(alive.request.num_in_flight_tokens)
        is_in_flight = alive.num_in_flight_tokens > 0
        is_kept = self._departed.keeps(in_flight=is_in_flight)
        tables = self._cache.blocks(alive.number) if is_kept else ()
        self._departed.end(run, tables, _IN_FLIGHT if is_in_flight else None, alive.load)
        if is_kept:
            self._ended[alive.number] = _Ended(alive.request, in_flight)

    def process(self, num_scheduled_tokens: Mapping[str, int]) -> None:
        """Note that the oldest step was processed; it had these tokens of requests."""
        for request_id in self._unproved.keys() & num_scheduled_tokens.keys():
            self._departed.loads.end(self._unproved.pop(request_id))
        for number, ended in self._ended.items():
            ended.num_in_flight_tokens -= num_scheduled_tokens.get(ended.request.request_id, 0)
            if ended.num_in_flight_tokens <= 0:
                self._departed.landed(number)
        self._told()
        self._departed.processed(-1)
        kept = self._departed.ended_requests
        self._ended = {number: ended for number, ended in self._ended.items() if number in kept}
        if self._departed.is_long:
            self._catch_up()

    def _told(self) -> None:
        """Note how many tokens requests have by their last runs, which have ended."""
        for number, ended in self._ended.items():
            if ended.is_last:
                self._departed.told(number, ended.request.num_tokens)

    def _follow(self, alive: Alive) -> None:
        """Note what a run has given back."""
        if not alive.passing:
            return
        tables = self._cache.blocks(alive.number)
        gone = [e for e in alive.passing if tables[e.group][e.position] != e.block_id]
        if gone:
            places = dict(self._loaded_positions(alive))
            own = [e[:2] for e in gone if e.position in places.get(e.group, ())]
            filled = {} if alive.load is None else dict.fromkeys(own, alive.load)
            self._departed.give_back(alive.number, gone, alive.since, filled)
            alive.passing = tuple(e for e in alive.passing if e not in gone)

    def _catch_up(self) -> None:
        for alive in self._alive.values():
            self._follow(alive)
        self._departed.catch_up()

    def cut(self, alive: Alive, resume: int) -> None:
        """Note that a run goes back to `resume` tokens in place; its blocks are findable."""
        end = min(alive.num_local_tokens + alive.num_loaded_tokens, resume)
        alive.num_known_tokens = alive.request.num_tokens
        alive.num_local_tokens = min(alive.num_local_tokens, resume)
        alive.num_loaded_tokens = end - alive.num_local_tokens
        alive.delays_commit = False
        sizes = [group.block_size for group in self._groups]
        alive.passing = tuple(e for e in alive.passing if e.position * sizes[e.group] < resume)
        self._departed.rewind(alive.number, resume)

    # What a decision is made from.

    def blocks_before(self) -> frozenset[BlockId]:
        """Return the blocks of which a report may mean what they held once."""
        self._catch_up()
        return self._departed.meant().blocks

    def past(self) -> tuple[list[Run], Past]:
        """Return all runs as the decision takes them, and what the past adds to them; a request is
        its number in the cache."""
        self._told()
        self._catch_up()
        past = self._departed.past()
        here = [self._run(alive) for alive in self._alive.values()]
        here = [run._replace(given_back=past.given_back.get(run.request, ())) for run in here]
        return [*here, *past.ended], past

    def judged(self, plan: RecoveryPlan) -> list[Request]:
        """Forget what is known to be garbage; return the requests of whose ended runs steps in
        flight have read some."""
        bad = {*plan.tainted, *plan.lost}
        readers = self._departed.readers(bad)
        self._departed.judged(plan)
        return [self._ended[n].request for n in readers if self._ended[n].num_in_flight_tokens > 0]

    def request_of(self, number: int) -> Request:
        """Return the request of a run that has ended and counts."""
        return self._ended[number].request

    def numbers_of(self, request_id: str) -> list[int]:
        """Return the runs of a request, those included that are kept."""
        ended = self._ended.items()
        numbers = [number for number, each in ended if each.request.request_id == request_id]
        alive = self._alive.get(request_id)
        return numbers if alive is None else [*numbers, alive.number]

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
        )
