"""Who waits, who has blocks, and who still writes into blocks that nobody has any more.

Its law: what a step in flight or a transfer may still do with blocks is remembered until it is
done. The device runs steps in order, so blocks that a step in flight writes may be handed out
again; blocks that a transfer writes are held until every rank has reported its end.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from math import lcm
from typing import Final

from kvbraid.cache import CacheManager, Need
from kvbraid.cache.chunk import chunk_rules
from kvbraid.cache.retention import checkpoint_interval
from kvbraid.ids import BlockId
from kvbraid.recovery.owners import Ownership
from kvbraid.recovery.policy import Cooldowns, Policy, RetryBudget
from kvbraid.recovery.quarantine import Quarantine
from kvbraid.recovery.transfers import Transfers
from kvbraid.scheduler.loads import LoadTiers
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.requests import EndedRun, Request
from kvbraid.scheduler.step import Output, Step


class Book:
    """The requests of one scheduler, and its ledgers. `running` has all who have blocks."""

    def __init__(self, cache: CacheManager, options: SchedulerOptions, tiers: LoadTiers) -> None:
        self.cache: Final = cache
        self.options: Final = options
        self.tiers: Final = tiers
        self.requests: Final[dict[int, Request]] = {}
        self.waiting: Final[list[Request]] = []
        self.running: Final[dict[int, Request]] = {}
        self.ended: list[EndedRun] = []
        self.steps: Final[deque[Step]] = deque()
        self.num_steps = 0
        self.outputs: list[Output] = []
        self.transfers: Final = Transfers(options.num_ranks)
        self.quarantine: Final = Quarantine()
        self.owners: Final = Ownership([g.block_size for g in cache.config.topology.groups])
        self.groups: Final = cache.config.topology.groups
        sizes = [group.block_size for group in self.groups]
        self.alignment: Final = cache.config.topology.alignment or lcm(*sizes)
        self.rules: Final = chunk_rules(
            cache.config.topology,
            dialect=cache.config.dialect,
            max_chunk_tokens=options.max_step_tokens,
            checkpoint_alignment=cache.config.checkpoint_alignment,
            partial_junctions=cache.config.partial_junctions,
            interval=checkpoint_interval(cache.config.retention),
        )
        retries = options.retries if options.policy is Policy.RETRY else 0
        self.retries: Final = RetryBudget(retries=retries, deadline=options.deadline_steps)
        self.cooldowns: Final = Cooldowns(
            failures=options.cooldown_failures, duration=options.cooldown_steps
        )

    def allocate(self, need: Need) -> bool:
        """Allocate for one request; return whether it fits."""
        done = self.cache.allocate([need])
        if done.num_fit and (self.ended or self.has_given_back):
            self.hand_out(done.block_ids)
        return bool(done.num_fit)

    def hand_out(self, block_ids: Iterable[int]) -> None:
        """Note that blocks hold something new: what was in them is lost for every other run."""
        new = frozenset(block_ids)
        self.ended = [ended.without(new) for ended in self.ended]
        for request in self.running.values():
            request.given_back = [g for g in request.given_back if g.block_id not in new]

    @property
    def has_given_back(self) -> bool:
        """Whether a loaded block is no longer in the table of its run."""
        return any(request.given_back for request in self.running.values())

    # A request gives its blocks back.

    def preempt(self, request: Request) -> None:
        """Take a request's blocks; it starts again later. Outputs of its steps still count."""
        tables = self.tables(request)
        self._hold(request)
        self.cache.preempt([request.number])
        self.preempted(request, tables)

    def preempted(self, request: Request, tables: Sequence[Sequence[BlockId]]) -> None:
        """Note that a request had these tables, and has given its blocks back."""
        self._leave(request, tables)
        request.num_computed = 0
        insort(self.waiting, request, key=lambda waiting: waiting.number)

    def end(self, request: Request, output: Output, *, is_held: bool = False) -> None:
        """End a request. `is_held`: what transfers may still write is held already."""
        self.outputs.append(output)
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
        """Return the tables of a request if steps in flight may still write into them."""
        return self.cache.blocks(request.number) if request.in_flight else ()

    def _hold(self, request: Request) -> None:
        load = request.load
        pending = self.transfers.pending(load.number) if load else frozenset()
        if load and pending:
            blocks = [t.block_id for t in load.targets if t.block_id not in self.quarantine.blocks]
            self.cache.pool.hold(blocks)
            self.quarantine.add(load.number, blocks, pending)

    def _leave(self, request: Request, tables: Sequence[Sequence[BlockId]]) -> None:
        """Who waited for blocks of this request must not wait for ever: all of them start over."""
        del self.running[request.number]
        request.counts.computed(request.num_computed - request.num_in_flight)
        if request.in_flight:
            self.ended.append(EndedRun(request.as_run(tables), max(request.in_flight)))
        for heir in sorted({*self.owners.leaves(request.number).owners.values()}):
            self.preempt(self.requests[heir])

    # A step has been processed.

    def processed(self, step: Step) -> None:
        """Forget what runs that have ended did in a step and in those before it."""
        self.ended = [ended for ended in self.ended if ended.last_step > step.number]

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
        for request in self.requests.values():
            request.counts.check_integrity()
            computed = self.cache.num_computed_tokens(request.number)
            assert computed == request.num_computed, f"{request.number}: {computed} computed"
            assert len(request.in_flight) <= len(self.steps), f"{request.number} is in no step"
        writes = self.transfers.writers
        for number, load in ((load.number, load) for load in self.transfers.loads):
            owner = self.running.get(load.request)
            is_safe = number in self.quarantine or (owner is not None and owner.load is load)
            assert is_safe, f"load {number} writes into blocks that nobody holds: {writes}"
