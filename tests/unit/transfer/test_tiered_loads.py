"""A scheduler over real tiers: what was evicted comes back, and what fails is computed again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbraid.cache import CacheConfig, CacheManager
from kvbraid.hashing import NO_EXTRA_KEYS
from kvbraid.loads import Load, Query, Record
from kvbraid.scheduler import Output, SchedulerOptions, StepResult
from kvbraid.scheduler.scheduler import Scheduler
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import OffloadManager
from kvbraid.transfer.status import Status
from kvbraid.transfer.tiered_loads import TieredLoads

from tests.reference.memory_worker import MemoryWorker

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=8)
HYBRID = Topology(groups=(FULL, WINDOW))
PROMPT = list(range(18))


@dataclass
class ScheduledEngine:
    """Steps run one after the other; each block that is written holds what computed it."""

    topology: Topology = HYBRID
    bad: set[tuple[Kind, BlockKey]] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = CacheConfig(topology=self.topology, num_blocks=60, findable=True)
        self.cache = CacheManager(config)
        self.worker = MemoryWorker(records={"disk": {}})
        self.manager = OffloadManager(self.cache, host_slots=40, tiers=[("disk", 90)])
        self.tiers = TieredLoads(self.manager, self.topology.alignment or 4)
        options = SchedulerOptions(max_step_tokens=64)
        self.scheduler = Scheduler(self.cache, options, self.tiers)
        self.loads: list[Load] = []

    def run(self, prompt: Sequence[int]) -> Output:
        """Run one request until its end."""
        request = self.scheduler.add(prompt, max_new_tokens=1)
        outputs: list[Output] = []
        for _ in range(30):
            step = self.scheduler.schedule()
            if step is None:
                self.tiers.scheduled(None)
                self.work()
                outputs += self.scheduler.report(self.tiers.take_reports())
                continue
            self.loads += step.loads
            self.tiers.scheduled(step.number, step.loads, step.work.kept_states)
            self.work()
            for source, target in step.work.copies:
                self.worker.device[target] = self.worker.device[source]
            for part in step.scheduled:
                for table in self.cache.blocks(part.request):
                    self.worker.device.update(dict.fromkeys(table, b"computed"))
            self.manager.step_ended(step.number)
            tokens = {part.request: [99] for part in step.scheduled if part.samples}
            result = StepResult(tokens=tokens, reports=self.tiers.take_reports())
            outputs += self.scheduler.update(step, result)
            self.scheduler.check_integrity(self.manager.held_blocks)
            self.manager.check_integrity()
            if any(output.finish for output in outputs):
                break
        self.settle()
        return next(output for output in outputs if output.request == request)

    def work(self) -> None:
        for job in self.manager.take_jobs():
            statuses = tuple(self.move(job, item) for item in job.items)
            self.manager.finished(0, [JobResult(number=job.number, statuses=statuses)])

    def move(self, job: Job, item: Item) -> Status:
        is_bad = item.key is not None and (job.kind, item.key) in self.bad
        return Status.CORRUPT if is_bad else self.worker.move(job, item)

    def settle(self) -> None:
        """Let everything be stored and written."""
        while self.manager.num_pending:
            self.tiers.scheduled(None)
            self.work()

    def evict(self) -> None:
        free = self.cache.pool.take(self.cache.pool.num_free)
        self.cache.pool.free(free)


def test_what_was_evicted_is_loaded_from_host_memory() -> None:
    engine = ScheduledEngine()
    engine.run(PROMPT)
    engine.evict()
    output = engine.run(PROMPT)
    assert output.prompt == (0, 16, 2)
    (load,) = engine.loads
    assert (load.tier, load.is_async, load.num_tokens) == ("host", True, 16)


def test_what_host_memory_lacks_comes_from_the_tier_below_in_the_same_load() -> None:
    engine = ScheduledEngine()
    engine.run(PROMPT)
    engine.evict()
    host = engine.manager.contents()["host"]
    engine.tiers.drop(Record("host", next(iter(host)).to_bytes()))
    output = engine.run(PROMPT)
    assert output.prompt == (0, 16, 2)
    (load,) = engine.loads
    assert load.tier == "disk"
    assert {record.tier for record in load.records} == {"host", "disk"}


def test_a_load_whose_record_is_corrupt_resumes_at_what_is_left() -> None:
    engine = ScheduledEngine(topology=Topology(groups=(FULL,)))
    engine.run(PROMPT)
    engine.evict()
    keys = list(engine.manager.contents()["host"])
    engine.tiers.drop(Record("host", keys[2].to_bytes()))
    engine.bad = {(Kind.PROMOTE, keys[2])}
    output = engine.run(PROMPT)
    assert output.prompt == (0, 8, 10)
    assert keys[2] in engine.manager.contents()["host"]  # It was computed, and stored, again.


def test_a_load_ends_with_whole_blocks_where_the_tiers_have_a_state_inside_one() -> None:
    state = GroupSpec(kind=SpecKind.MAMBA, block_size=8)
    topology = Topology(groups=(FULL, state), hash_block_size=4, partial_hits=True, alignment=8)
    engine = ScheduledEngine(topology)
    engine.run(PROMPT[:15])
    assert engine.run(PROMPT[:15]).prompt == (12, 0, 3)
    engine.evict()
    assert engine.run(PROMPT[:15]).prompt == (0, 8, 7)


def test_a_draft_head_needs_one_unit_after_a_load_and_no_whole_block() -> None:
    head = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=8, eagle=True)
    state = GroupSpec(kind=SpecKind.MAMBA, block_size=8)
    topology = Topology(groups=(head, state), hash_block_size=4, partial_hits=True, alignment=8)
    engine = ScheduledEngine(topology)
    prompt = range(22)  # The head drops one unit of the five that are found.
    engine.run(prompt)
    assert engine.run(prompt).prompt == (16, 0, 6)
    engine.evict()
    assert engine.run(prompt).prompt == (0, 16, 6)


def test_an_offer_that_does_not_begin_at_the_hit_is_not_made() -> None:
    engine = ScheduledEngine()
    engine.run(PROMPT)
    engine.evict()
    request = engine.cache.add(PROMPT)
    assert engine.tiers.lookup(Query(request, PROMPT, NO_EXTRA_KEYS, 4, ())) is None
    assert engine.tiers.lookup(Query(request, PROMPT, NO_EXTRA_KEYS, 0, ())) is not None


def test_a_tier_that_was_backed_off_is_not_asked() -> None:
    engine = ScheduledEngine()
    engine.run(PROMPT)
    engine.evict()
    engine.tiers.back_off(Record("host", b"any"))
    assert engine.run(PROMPT).prompt == (0, 0, 18)


def test_nothing_is_loaded_of_what_was_computed_from_garbage() -> None:
    engine = ScheduledEngine()
    engine.run(PROMPT)
    blocks = sorted({b for blocks in engine.cache.debug.cached().values() for b in blocks})
    engine.tiers.forget_blocks(blocks)
    engine.evict()
    engine.settle()
    assert engine.manager.num_blocks() == {"host": 0, "disk": 0}
    assert engine.run(PROMPT).prompt == (0, 0, 18)
    assert len(engine.worker.records["disk"]) > 0
