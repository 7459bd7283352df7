"""Who waits, who has blocks, and who still uses blocks that nobody has any more.

Its law: the device runs steps in order, so blocks that a step in flight writes may be handed out
again; blocks that a transfer may write are held until every rank has reported its end.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Sequence
from math import lcm
from typing import Final

from kvbraid.cache import CacheManager, Need
from kvbraid.cache.chunk import chunk_rules
from kvbraid.cache.retention import checkpoint_interval
from kvbraid.ids import BlockId
from kvbraid.recovery.departed import Departed
from kvbraid.recovery.owners import Ownership
from kvbraid.recovery.plan import Action
from kvbraid.recovery.policy import Cooldowns, Policy, RetryBudget
from kvbraid.recovery.quarantine import Quarantine
from kvbraid.recovery.run import Run
from kvbraid.recovery.transfers import Transfers
from kvbraid.scheduler.loads import LoadTiers
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.requests import Request
from kvbraid.scheduler.step import Output, Step


class Book:
    """The requests and ledgers of one scheduler. `running` are all who have blocks, in the order
    in which they started; `waiting` are all others, in the order in which they arrived."""

    def __init__(self, cache: CacheManager, options: SchedulerOptions, tiers: LoadTiers) -> None:
        self.cache: Final = cache
        self.options: Final = options
        self.tiers: Final = tiers
        self.requests: Final[dict[int, Request]] = {}
        self.waiting: Final[list[Request]] = []
        self.running: Final[dict[int, Request]] = {}
        self.steps: Final[deque[Step]] = deque()
        self.num_steps = 0
        self.outputs: list[Output] = []
        self.actions: Final[Counter[Action]] = Counter()
        topology, sizes = (
            cache.config.topology,
            [g.block_size for g in cache.config.topology.groups],
        )
        self.alignment: Final = topology.alignment or lcm(*sizes)
        self.rules: Final = chunk_rules(
            topology,
            dialect=cache.config.dialect,
            max_chunk_tokens=options.max_step_tokens,
            checkpoint_alignment=cache.config.checkpoint_alignment,
            partial_junctions=cache.config.partial_junctions,
            interval=checkpoint_interval(cache.config.retention),
        )
        self.transfers: Final = Transfers(options.num_ranks)
        self.quarantine: Final = Quarantine()
        self.departed: Final = Departed()
        self.owners: Final = Ownership(sizes)
        retries = options.retries if options.policy is Policy.RETRY else 0
        self.retries: Final = RetryBudget(retries=retries, deadline=options.deadline_steps)
        self.cooldowns: Final = Cooldowns(
            failures=options.cooldown_failures, duration=options.cooldown_steps
        )

    def allocate(self, need: Need) -> bool:
        """Allocate for one request; return whether it fits."""
        done = self.cache.allocate([need])
        if done.num_fit:
            self.departed.hand_out(done.block_ids)
        return bool(done.num_fit)

    def runs(self) -> list[Run]:
        """Return all runs as recovery sees them."""
        going_on = [r.as_run(self.departed.given_back(r.number)) for r in self.running.values()]
        return going_on + self.departed.ended

    def preempt(self, request: Request) -> None:
        """Take a request's blocks; it starts again later. Outputs of its steps still count."""
        tables = self.tables(request)
        self._hold(request)
        self.cache.preempt([request.number])
        self.preempted(request, tables)

    def preempted(self, request: Request, tables: Sequence[Sequence[BlockId]]) -> None:
        """Note that a request has given its blocks back. It had these `tables`."""
        self._leave(request, tables)
        request.num_computed = 0
        insort(self.waiting, request, key=lambda waiting: waiting.number)

    def end(self, request: Request, output: Output, *, is_held: bool = False) -> None:
        """End a request. `is_held`: what transfers may still write is held already."""
        self.outputs.append(output._replace(num_recomputed=request.counts.recomputed))
        if request.number in self.running:
            if not is_held:
                self._hold(request)
            self._leave(request, self.tables(request))
        else:
            self.waiting.remove(request)
        self.cache.release([request.number])
        del self.requests[request.number]
        self.retries.ended(request.number)

    def tables(self, request: Request) -> Sequence[Sequence[BlockId]]:
        """Return a request's tables if steps in flight use them; otherwise they do not matter."""
        return self.cache.blocks(request.number) if request.in_flight else ()

    def _hold(self, request: Request) -> None:
        load = request.load
        pending = self.transfers.pending(load.number) if load else frozenset()
        if load and pending:
            held = self.quarantine.blocks
            blocks = [target.block_id for target in load.targets if target.block_id not in held]
            self.cache.pool.hold(blocks)
            self.quarantine.add(load.number, blocks, pending)

    def _leave(self, request: Request, tables: Sequence[Sequence[BlockId]]) -> None:
        """Note a run's end. Whoever waits for blocks that it writes again gives them back, too:
        what is in them is lost, and nobody else would write it."""
        number = request.number
        del self.running[number]
        request.counts.computed(request.num_processed)
        if request.in_flight:
            run = request.as_run(self.departed.given_back(number), tables)
            self.departed.end(run, max(request.in_flight))
        self.departed.leave(number)
        for heir in sorted({*self.owners.leaves(number).owners.values()}):
            self.preempt(self.requests[heir])

    def check_integrity(self) -> None:
        """Panic unless requests, ledgers and the cache agree."""
        held = [*self.quarantine.blocks]
        if self.options.max_steps_in_flight > 1:
            held += [b for step in self.steps for copy in step.work.copies for b in copy]
        self.cache.debug.check_integrity(held)
        self.owners.check_integrity()
        self.quarantine.check_integrity()
        queue = [request.number for request in self.waiting]
        assert queue == sorted(queue), f"the queue {queue} is out of order"
        assert sorted([*queue, *self.running]) == sorted(self.requests), "a request is lost"
        for number, request in self.requests.items():
            request.counts.check_integrity()
            computed = self.cache.num_computed_tokens(number)
            assert computed == request.num_computed, f"request {number} has {computed} computed"
            assert request.in_flight.keys() <= {step.number for step in self.steps}
        for load in self.transfers.loads:
            owner = self.running.get(load.request)
            is_held = load.number in self.quarantine or not load.targets
            is_owned = owner is not None and owner.load is load
            assert is_held or is_owned, f"load {load.number} writes blocks that nobody holds"
