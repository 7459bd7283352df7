"""The runs of vLLM's requests: `Runs` whose counts come from vLLM.

vLLM counts what is in flight in tokens, and does not say when a synchronous load has ended: that
is when the first step of its run is processed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vllm.v1.request import Request

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.loads import Load
from kvbraid.recovery import RecoveryPlan, Run
from kvbraid.recovery.ledger.live import LiveRun
from kvbraid.recovery.ledger.released_blocks import Past
from kvbraid.recovery.ledger.runs import Runs

_IN_FLIGHT: Final = 1 << 62
"""A step that is never processed: vLLM counts what is in flight in tokens."""


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRun(LiveRun):
    """A run that goes on of vLLM's `request`. Its `number` in the cache is another one for each of
    its runs; `delays_commit`: the blocks of an asynchronous load are not findable yet.
    `is_unproved`: no step has shown yet how its load went."""

    request: Request
    number: int
    is_unproved: bool = False

    @property
    def num_computed(self) -> int:
        """The tokens of all steps. A load counts as done before vLLM takes it over."""
        if self.delays_commit:
            return self.num_local + self.num_loaded
        return int(self.request.num_computed_tokens)

    @property
    def num_in_flight(self) -> int:
        """The tokens of this run in steps in flight: steps of an earlier run do not count."""
        request = self.request
        return int(request.num_in_flight_tokens - request.num_stale_output_tokens)

    @property
    def num_processed(self) -> int:
        """The tokens of steps that have ended."""
        return self.num_computed - self.num_in_flight

    @property
    def is_unused(self) -> bool:
        """Whether tokens are loaded, and nothing was scheduled that is computed from them."""
        end = min(self.num_local + self.num_loaded, self.request.num_tokens - 1)
        is_used = not self.delays_commit and self.num_computed > end
        return self.num_loaded > 0 and not is_used


@dataclass(slots=True)
class _EndedRequestRun:
    """A run that has ended; `num_in_flight_tokens` are those of the request, earlier runs
    included. `is_last`: no later run of the request has started."""

    request: Request
    num_in_flight_tokens: int
    is_last: bool = True


class RequestRuns(Runs):
    """The runs of one engine. Reports on a load may come for `late_steps` steps after its end."""

    def __init__(self, cache: CacheManager, late_steps: int) -> None:
        super().__init__(cache, late_steps)
        self._live: dict[str, RequestRun] = {}
        self._ended: dict[int, _EndedRequestRun] = {}
        self._synchronous: dict[str, int] = {}  # Loads whose step was not processed.

    def start(
        self,
        request: Request,
        number: int,
        *,
        num_local: int,
        num_loaded: int,
        delays_commit: bool,
    ) -> RequestRun:
        """Note that a request got its first blocks."""
        self._told()
        for ended in self._ended.values():
            ended.is_last = ended.is_last and ended.request is not request
        self._live[request.request_id] = run = RequestRun(request=request, number=number)
        run.begin(request.num_tokens, num_local, num_loaded)
        run.delays_commit = run.is_loading = delays_commit
        run.is_unproved = num_loaded > 0
        self.note_hit(number, run)
        if num_loaded:
            self._begin(run)
        return run

    def _begin(self, run: RequestRun) -> None:
        load = Load(
            number=self.released.now.num_loads,
            request=run.number,
            start=run.num_local,
            num_tokens=run.num_loaded,
            is_async=run.delays_commit,
            tier="",
            records=(),
            targets=tuple(self.loaded(run.number, run)),
        )
        self.note_load(run, load)
        if not load.is_async:
            self._synchronous[run.request.request_id] = load.number

    def find(self, request_id: str) -> RequestRun | None:
        """Return the run of a request; None if it has no blocks."""
        return self._live.get(request_id)

    def live(self) -> Iterable[RequestRun]:
        """Return all runs that go on."""
        return self._live.values()

    def load_ended(self, request_id: str) -> None:
        """Note that the asynchronous load of a request has ended."""
        run = self._live.get(request_id)
        if run is not None:
            run.is_loading = False
            self._close(run)

    def _close(self, run: RequestRun) -> None:
        if run.load is not None:
            self.released.loads.end(run.load.number)

    def end(self, request_id: str) -> None:
        """Note that a request is about to give its blocks back."""
        run = self._live.pop(request_id, None)
        if run is None:
            return
        if run.is_loading:  # Nobody has read anything of it.
            self._close(run)
            self.released.discard(run.number)
            return
        self.follow(run.number, run)
        last_step = _IN_FLIGHT if run.num_in_flight > 0 else None
        is_kept = self.released.keeps(in_flight=last_step is not None)
        tables = self._cache.blocks(run.number) if is_kept else ()
        load = run.load.number if run.load is not None else None
        self.released.end(_as_run(run), tables, last_step, load)
        if is_kept:
            in_flight = int(run.request.num_in_flight_tokens)
            self._ended[run.number] = _EndedRequestRun(run.request, in_flight)

    def process(self, num_scheduled_tokens: Mapping[str, int]) -> None:
        """Note that the oldest step was processed; it had these tokens of requests."""
        for request_id in self._synchronous.keys() & num_scheduled_tokens.keys():
            self.released.loads.end(self._synchronous.pop(request_id))
        for number, ended in self._ended.items():
            ended.num_in_flight_tokens -= num_scheduled_tokens.get(ended.request.request_id, 0)
            if ended.num_in_flight_tokens <= 0:
                self.released.landed(number)
        self._told()
        self.released.processed(-1)
        kept = self.released.ended_requests
        self._ended = {number: ended for number, ended in self._ended.items() if number in kept}
        if self.released.is_long:
            self._catch_up()

    def _told(self) -> None:
        """Note how many tokens requests have by their last runs, which have ended."""
        for number, ended in self._ended.items():
            if ended.is_last:
                self.released.told(number, ended.request.num_tokens)

    def _catch_up(self) -> None:
        self.catch_up({run.number: run for run in self._live.values()})

    # What a decision is made from.

    def blocks_before(self) -> frozenset[BlockId]:
        """Return the blocks of which a report may mean what they held once."""
        self._catch_up()
        return self.released.meant().blocks

    def past(self) -> tuple[list[Run], Past]:
        """Return all runs as the decision takes them, and what the past adds to them; a request is
        its number in the cache."""
        self._told()
        self._catch_up()
        return self.with_past(map(_as_run, self._live.values()))

    def judged(self, plan: RecoveryPlan) -> list[Request]:
        """Forget what is known to be garbage; return the requests of whose ended runs steps in
        flight have read some."""
        bad = {*plan.tainted, *plan.lost}
        readers = self.released.readers(bad)
        self.released.judged(plan)
        return [self._ended[n].request for n in readers if self._ended[n].num_in_flight_tokens > 0]

    def request_of(self, number: int) -> Request:
        """Return the request of a run that has ended and counts."""
        return self._ended[number].request

    def numbers_of(self, request_id: str) -> list[int]:
        """Return the runs of a request, those included that are kept."""
        ended = self._ended.items()
        numbers = [number for number, each in ended if each.request.request_id == request_id]
        run = self._live.get(request_id)
        return numbers if run is None else [*numbers, run.number]


def _as_run(run: RequestRun) -> Run:
    request = run.request
    return run.as_run(
        run.number,
        request.num_tokens,
        request.num_prompt_tokens,
        run.num_computed,
        run.num_in_flight,
    )
