"""The requests of a scheduler: who waits, and who has blocks.

Invariant: the device runs steps in order, so blocks that a step in flight writes may be handed out
again; blocks that a transfer may write are held until every rank has reported its end.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvbraid.cache import CacheManager
from kvbraid.cache.chunk import rules_of
from kvbraid.hashing import ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads import LoadTiers
from kvbraid.recovery import Run
from kvbraid.recovery.ledger.counts import PromptCounts
from kvbraid.recovery.ledger.live import LiveRun
from kvbraid.recovery.ledger.loading import BlockTables
from kvbraid.recovery.ledger.state import RecoveryState
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.step import Output, Scheduled, Step
from kvbraid.spec import GroupSpec


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduledRequest(LiveRun):
    """One request that has not ended, and its present run; in tokens.

    `run` tells runs of a request apart, and what was computed before and after a rewind.
    `in_flight` has the parts of steps whose output still counts, by step.
    """

    number: int
    prompt: Sequence[int]
    extra: ExtraKeys
    max_tokens: int
    stop_tokens: Collection[int]
    counts: PromptCounts
    run: int = 0
    num_computed: int = 0
    outputs: list[int] = field(default_factory=list)
    in_flight: dict[int, Scheduled] = field(default_factory=dict)
    junction: int = 0

    def begin(self, num_known: int, num_local: int, num_loaded: int) -> None:
        """Begin a run: a hit, and what a load brings after it."""
        LiveRun.begin(self, num_known, num_local, num_loaded)
        self.num_computed = num_local + num_loaded
        self.counts.started(num_local, num_loaded)

    def rewind(self, groups: Sequence[GroupSpec], num_known: int, num_tokens: int) -> None:
        """Go back in place; nothing is awaited any more."""
        LiveRun.rewind(self, groups, num_known, num_tokens)
        self.num_computed, self.run, self.is_loading = num_tokens, self.run + 1, False

    @property
    def num_tokens(self) -> int:
        """The tokens that are known."""
        return len(self.prompt) + len(self.outputs)

    @property
    def num_expected(self) -> int:
        """The known tokens, and those that steps in flight sample if every draft is accepted."""
        parts = self.in_flight.values()
        return self.num_tokens + sum(1 + part.num_drafts for part in parts if part.samples)

    @property
    def num_in_flight(self) -> int:
        """The tokens of steps in flight."""
        return sum(part.num_tokens for part in self.in_flight.values())

    @property
    def num_processed(self) -> int:
        """The tokens of steps that have ended, and those that were not computed here."""
        return self.num_computed - self.num_in_flight

    @property
    def num_to_compute(self) -> int:
        """How many tokens are computed at most: the last one of an output never is."""
        return max(len(self.prompt), self.max_tokens - 1)


class RequestTable:
    """The requests of one scheduler. `running` are all who have blocks, in the order in which they
    started; `waiting` are all others, in the order in which they arrived."""

    def __init__(
        self,
        cache: CacheManager,
        options: SchedulerOptions,
        tiers: LoadTiers,
        ledgers: RecoveryState,
    ) -> None:
        self.cache: Final = cache
        self.tiers: Final = tiers
        self.groups: Final = cache.config.topology.groups
        self.rules: Final = rules_of(cache.config, max_chunk_tokens=options.max_step_tokens)
        self.options: Final = options
        self.ledgers: Final = ledgers
        self.requests: Final[dict[int, ScheduledRequest]] = {}
        self.waiting: Final[list[ScheduledRequest]] = []
        self.running: Final[dict[int, ScheduledRequest]] = {}
        self.steps: Final[deque[Step]] = deque()
        self.num_steps = 0
        self.outputs: list[Output] = []

    def run_of(self, request: ScheduledRequest) -> Run:
        """Return a request's run as it is decided on."""
        computed, prompt = request.num_computed, request.counts.num_prompt_tokens
        if request.is_loading:  # The last token is computed, even if it is loaded, too.
            computed = min(computed, request.num_tokens - 1)
        return request.as_run(
            request.number, request.num_tokens, prompt, computed, request.num_in_flight
        )

    def preempt(self, request: ScheduledRequest) -> None:
        """Take a request's blocks; it starts again later. Outputs of its steps still count."""
        tables = self._tables(request)
        self.ledgers.hold(request.load)
        self.cache.preempt([request.number])
        self.preempted(request, tables)

    def preempted(self, request: ScheduledRequest, tables: BlockTables) -> None:
        """Note that a request has given its blocks back. It had these `tables`."""
        self._leave(request, tables)
        request.num_computed = 0
        request.run += 1
        insort(self.waiting, request, key=lambda waiting: waiting.number)

    def end(self, request: ScheduledRequest, output: Output, *, is_held: bool = False) -> None:
        """End a request. `is_held`: what transfers may still write is held already."""
        self.outputs.append(output._replace(num_recomputed=request.counts.recomputed))
        if request.number in self.running:
            if not is_held:
                self.ledgers.hold(request.load)
            self._leave(request, self._tables(request))
        else:
            self.waiting.remove(request)
        self.cache.release([request.number])
        del self.requests[request.number]
        self.ledgers.retries.ended(request.number)

    def _tables(self, request: ScheduledRequest) -> BlockTables:
        """The tables of a request if they count when its run ends."""
        is_kept = self.ledgers.released.keeps(in_flight=bool(request.in_flight))
        return self.cache.blocks(request.number) if is_kept else ()

    def _leave(self, request: ScheduledRequest, tables: BlockTables) -> None:
        del self.running[request.number]
        request.counts.computed(request.num_processed)
        last_step = max(request.in_flight, default=None)
        for heir in self.ledgers.leave(self.run_of(request), tables, last_step, request.load):
            if heir in self.running:  # An heir's own heirs go with it.
                self.preempt(self.requests[heir])

    def check_integrity(self, outside: Sequence[BlockId] = ()) -> None:
        """Panic unless requests, ledgers and the cache agree. Others hold blocks `outside`."""
        work = [s.work for s in self.steps if self.options.max_steps_in_flight > 1]
        ends = [block for each in work for copy in each.copies for block in copy]
        loads = {number: run.load for number, run in self.running.items()}
        self.ledgers.check_integrity(loads, [*ends, *outside])
        queue = [request.number for request in self.waiting]
        assert queue == sorted(queue), f"the queue {queue} is out of order"
        assert sorted([*queue, *self.running]) == sorted(self.requests), "a request is lost"
        in_flight = {step.number for step in self.steps}
        for number, request in self.requests.items():
            request.counts.check_integrity()
            computed = self.cache.num_computed_tokens(number)
            assert computed == request.num_computed, f"request {number} has {computed} computed"
            assert request.in_flight.keys() <= in_flight
