"""An engine with tiers: a cache, its manager, and workers whose jobs the test lets end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvbraid.cache import CacheConfig, CacheManager, Dense, Match, Need, Retention
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads import LoadReport, Target
from kvbraid.recovery.ledger.loading import targets_of
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology
from kvbraid.transfer.jobs import Item, Job, JobResult
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Again, Found, OffloadManager, OffloadOptions
from kvbraid.transfer.status import Status

from tests.reference.memory_worker import MemoryWorker

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=8)
STATE = GroupSpec(kind=SpecKind.MAMBA, block_size=4)
LONG_STATE = GroupSpec(kind=SpecKind.MAMBA, block_size=8)
HYBRID = Topology(groups=(FULL, WINDOW))
PARTIAL = Topology(groups=(FULL, LONG_STATE), alignment=8, hash_block_size=4, partial_hits=True)
"""The states at prompts' ends are kept, also inside their blocks."""

Fails = Callable[[Job, Item, int], Status]
"""What becomes of an item at a rank."""


def all_well(job: Job, item: Item, rank: int) -> Status:
    del job, item, rank
    return Status.OK


@dataclass
class Engine:
    """Steps are numbered from 0, and have run when `step` returns. Blocks hold their own keys, and
    the number of the weights that computed them."""

    topology: Topology = HYBRID
    num_blocks: int = 60
    host_slots: int = 40
    tiers: Sequence[tuple[str, int]] = ()
    num_ranks: int = 1
    options: OffloadOptions = field(default_factory=OffloadOptions)
    retention: Retention | None = None
    dialect: EngineDialect = EngineDialect.PURE

    def __post_init__(self) -> None:
        self.workers = [
            MemoryWorker(records={name: {} for name, _ in self.tiers})
            for _ in range(self.num_ranks)
        ]
        self.fails: Fails = all_well
        self.jobs: list[Job] = []
        self.num_steps = 0
        self.num_loads = 0
        self.weights = 0
        self.restart()

    def restart(self) -> None:
        """Start with an empty pool and an empty host tier."""
        config = CacheConfig(
            topology=self.topology,
            num_blocks=self.num_blocks,
            hash_seed="0",
            events=True,
            findable=True,
            retention=self.retention or Dense(),
            dialect=self.dialect,
        )
        self.cache = CacheManager(config)
        self.start()

    def start(self) -> None:
        """Start with an empty host tier."""
        self.manager = OffloadManager(
            self.cache,
            host_slots=self.host_slots,
            tiers=self.tiers,
            options=self.options,
            num_ranks=self.num_ranks,
        )

    # Requests.

    def compute(
        self, tokens: Sequence[int], *, extra: ExtraKeys = NO_EXTRA_KEYS, to_end: bool = True
    ) -> int:
        """Compute a prompt in steps of its own, without any hit; return its request."""
        request = self.cache.add(tokens, extra=extra)
        self.manager.lookup(request, tokens, extra=extra)
        self.compute_known(request, tokens, to_end=to_end)
        return request

    def compute_known(self, request: int, tokens: Sequence[int], *, to_end: bool = True) -> None:
        """Compute a prompt that the cache knows: in one step, or as its states ask for."""
        while left := len(tokens) - self.cache.num_computed_tokens(request):
            self.compute_part(request, self.cache.plan_chunk(request, left), to_end=to_end)

    def compute_part(self, request: int, num_tokens: int, *, to_end: bool = True) -> None:
        """Compute some tokens of a request in a step."""
        self.cache.start_step()
        assert self.cache.allocate([Need(request=request, num_new_tokens=num_tokens)]).num_fit
        self.step(request, to_end=to_end)

    def write(self, request: int) -> None:
        """Write every block of a request: with its key, or with what has none yet."""
        keys = {}
        for (group, digest), blocks in self.cache.debug.cached().items():
            keys.update(dict.fromkeys(blocks, BlockKey(digest, group)))
        for table in self.cache.blocks(request):
            for block in filter(None, table):
                for rank, worker in enumerate(self.workers):
                    known = keys.get(block)
                    worker.device[block] = self.content(known, rank) if known else b"unfinished"

    def content(self, key: BlockKey, rank: int) -> bytes:
        """Return what a block holds if the present weights have computed it."""
        return content_of(key, rank) + bytes(self.weights)

    def reset(self) -> bool:
        """Change the weights, and have the tiers reset; False if requests keep their blocks."""
        held = self.manager.held_blocks
        self.cache.pool.free(held)
        is_reset = self.cache.reset()
        self.cache.pool.hold(held)
        self.weights += is_reset
        self.manager.reset()
        assert not any(self.manager.num_blocks().values())
        self.check()
        return is_reset

    def step(self, request: int | None = None, *, to_end: bool = True) -> int:
        """Schedule a step that runs at once, and its jobs; return its number.

        It computes a request, or nothing.
        """
        number, self.num_steps = self.num_steps, self.num_steps + 1
        work = self.cache.take_work()
        self.manager.end_schedule(number, work.kept_states)
        self.take_jobs()
        for source, target in work.copies:
            for worker in self.workers:
                worker.device[target] = worker.device[source]
        if request is not None:
            self.write(request)
        self.manager.step_ended(number)
        if to_end:
            self.run()
        return number

    def release(self, request: int) -> None:
        self.cache.release([request])
        self.manager.forget_request(request)

    def evict(self) -> None:
        """Hand out every free block of the pool."""
        free = self.cache.pool.take(self.cache.pool.num_free)
        self.cache.pool.free(free)

    def forgotten(self, tokens: Sequence[int]) -> None:
        """Compute a prompt, store it, and lose it on the device."""
        self.release(self.compute(tokens))
        self.evict()

    # Loads.

    def look_up(self, tokens: Sequence[int], *, may_wait: bool = False) -> Found | Again | None:
        self.request = self.cache.add(tokens)
        return self.manager.lookup(self.request, tokens, may_wait=may_wait)

    def begin(self, found: Found) -> list[Target]:
        """Give a request the blocks of an offer, and begin its load; return what it fills."""
        need = Need(
            request=found.request,
            num_new_tokens=0,
            match=Match(*found.match),
            num_external_tokens=found.num_external_tokens,
            delay_commit=True,
        )
        self.cache.start_step()
        assert self.cache.allocate([need]).num_fit
        tables = self.cache.blocks(found.request)
        start, end = found.match.num_tokens, found.num_tokens
        targets = list(targets_of(self.topology.groups, tables, start, end))
        self.manager.begin_load(self.num_loads, self.num_steps, targets, found.request)
        self.num_loads += 1
        self.step(to_end=False)
        return targets

    def load(self, tokens: Sequence[int]) -> tuple[int, list[LoadReport]]:
        """Load what is there of a prompt; return how many tokens, and the reports."""
        found = self.look_up(tokens)
        if not isinstance(found, Found):
            return 0, []
        self.begin(found)
        self.run()
        return found.num_tokens, self.manager.take_reports()

    # Jobs.

    def take_jobs(self) -> None:
        self.jobs += self.manager.take_jobs()
        self.check()

    def run(self) -> None:
        """Let all jobs end, and those that follow."""
        self.take_jobs()
        while self.jobs:
            self.end(self.jobs[0])
            self.take_jobs()

    def end(self, job: Job) -> None:
        """Let one job end at all ranks."""
        self.end_now(job)
        self.jobs.remove(job)

    def end_now(self, job: Job) -> None:
        for rank in range(self.num_ranks):
            self.answer(job, rank)

    def answer(self, job: Job, rank: int, *, is_over: bool = True) -> None:
        """Let a job be answered by one rank."""
        statuses = []
        for item in job.items:
            status = self.fails(job, item, rank)
            if status is Status.OK:
                status = self.workers[rank].move(job, item)
            statuses.append(status)
        result = JobResult(number=job.number, statuses=tuple(statuses), is_over=is_over)
        self.manager.finished(rank, [result])
        self.check()

    def check(self) -> None:
        """Check that nothing is inconsistent, and that all that is found is right."""
        self.manager.check_integrity()
        self.cache.debug.check_integrity(self.manager.held_blocks)
        for tier, keys in self.manager.contents().items():
            for key, slot in keys.items():
                for rank, worker in enumerate(self.workers):
                    records = worker.records.get(tier)
                    name = self.manager._tiers.record_key(key)
                    found = worker.host.get(slot) if records is None else records.get(name)
                    right = self.content(key, rank)
                    assert found in {right, None if records is not None else b""}

    def check_idle(self) -> None:
        """Check that nothing is pinned."""
        assert not self.manager.num_pinned
        assert not self.manager.num_pending
        assert not self.cache.pool.num_held


def content_of(key: BlockKey, rank: int) -> bytes:
    return key.to_bytes() + bytes([rank])


def failing(status: Status, *kinds: str, first: int = 1_000_000) -> Fails:
    """Let the first items of jobs of some kinds end in a status."""
    left = [first]

    def fails(job: Job, item: Item, rank: int) -> Status:
        del item, rank
        if job.kind not in kinds or not left[0]:
            return Status.OK
        left[0] -= 1
        return status

    return fails


def bytes_of(engine: Engine, targets: Iterable[Target]) -> list[bytes]:
    """What the device holds where a load was to fill, at rank 0."""
    return [engine.workers[0].device[BlockId(target.block_id)] for target in targets]
