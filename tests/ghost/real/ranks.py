"""Ranks that are real: a `Worker` over a pool and an arena, and records as files.

Each rank has directories of its own, one for each tier. Whatever a tier or the arena is said to
have is read and compared in every tick, byte by byte, unless a fault has spoilt it. No job may
touch a slot that a call still has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from kvbraid.ids import BlockId
from kvbraid.layout import MemoryPlan
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.record_store import RecordStore, StoreOptions
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from tests.ghost.checks import BadOutcomeError
from tests.ghost.device import Device
from tests.ghost.faults import DEATH, Tally
from tests.ghost.landing import EngineRanks
from tests.ghost.real.memory import GhostEngine, Odds, RankMemory, draw_plan
from tests.ghost.real.tier import PATIENCE_S, BrokenTier, TierJobs

TICKS_TO_DEADLINE = 3.0
NEVER = 1_000_000


@dataclass(slots=True)
class _Rank:
    """The parts of one rank, and what was read of its slots and records."""

    memory: RankMemory
    engine: GhostEngine
    worker: Worker
    tiers: dict[str, TierJobs]
    waiting: list[tuple[int, Job]] = field(default_factory=list)
    slots: dict[tuple[int, int], tuple[bytes, bytes | None]] = field(default_factory=dict)
    records: dict[tuple[str, BlockKey], tuple[int, bytes | None]] = field(default_factory=dict)

    def set_tick(self, tick: int) -> None:
        self.engine.tick = tick
        for tier in self.tiers.values():
            tier.tick = tick


class RealRanks(EngineRanks):
    """Real ranks over a folder; `close` them."""

    def __init__(
        self,
        device: Device,
        random: Random,
        num_ranks: int,
        tiers: Sequence[str],
        share: float,
        *,
        host_slots: int,
        folder: Path,
    ) -> None:
        super().__init__(device, random, num_ranks, tiers, share)
        plan = draw_plan(random, device.groups, len(device.cells))
        self._odds = Odds(random, share, self.faults)
        self._most_hung = random.choice((0, 1, 2))
        self._moved: Counter[str] = Counter()
        self._jobs: dict[int, Job] = {}
        self._open: dict[int, int] = {}  # By job, the ranks at which it is not over.
        self._dead_until: dict[str, int] = {}
        self._ranks = [self._rank(rank, plan, host_slots, folder) for rank in range(num_ranks)]

    def _rank(self, rank: int, plan: MemoryPlan, num_slots: int, folder: Path) -> _Rank:
        slot_bytes = HostSlots.of(plan, 1 << 40).slot_bytes
        slots = HostSlots.of(plan, num_slots * slot_bytes)
        host = HostTier(slots, piece_bytes=self.random.randint(1, 4) * slot_bytes)
        assert host.wait(PATIENCE_S)
        memory = RankMemory(plan, self.device, rank)
        engine = GhostEngine(memory, replace(self._odds, share=self.share / 2))
        mover = Mover(plan, bases=memory.pool.bases, host=host, engine=engine)
        tiers = {
            name: self._tier(name, folder / f"{name}-{rank}", rank, slots) for name in self.tiers
        }
        return _Rank(memory, engine, Worker(mover, tiers), tiers)

    def _tier(self, name: str, folder: Path, rank: int, slots: HostSlots) -> TierJobs:
        namespace = Namespace(
            layout="ghost",
            model="ghost",
            hash_algorithm="ghost",
            hash_seed="0",
            rank=rank,
            num_ranks=self.num_ranks,
        )
        options = StoreOptions(
            num_threads=1 + self._most_hung,
            max_hung_threads=self.random.randint(1, max(1, self._most_hung)),
            load_deadline_s=TICKS_TO_DEADLINE,
            store_deadline_s=TICKS_TO_DEADLINE,
            errors_in_a_row=NEVER if self._most_hung else self.random.randint(1, 3),
            pause_s=TICKS_TO_DEADLINE,
        )
        tier = BrokenTier(folder, namespace)
        store = RecordStore(
            name,
            tier,
            namespace=namespace,
            used_bytes=slots.used_bytes,
            options=options,
            clock=lambda: float(self.tick),
        )
        return TierJobs(tier, store, self._odds, self._most_hung)

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        ranks = self._ranks
        return bool(super().is_busy or any(r.waiting or not r.worker.idle for r in ranks))

    def _begin(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._open[job.number] = self.num_ranks
        self._check_slots(job)
        for rank in self._ranks:
            rank.waiting.append((self.tick + self.random.choice((0, 0, 1, 1, 3)), job))

    def _check_slots(self, job: Job) -> None:
        """Check that no slot is written that a call still reads or writes, or read that one still
        writes: a call that hangs has its slots until it ends, whatever was answered before."""
        reads, writes = _slots(job)
        for number in self._open.keys() - {job.number}:
            other = self._jobs[number]
            its_reads, its_writes = _slots(other)
            if torn := (reads & its_writes) | (writes & (its_reads | its_writes)):
                raise BadOutcomeError(f"{job.kind} of slots {torn}, which {other} still has")

    def advance(self) -> None:
        """Submit what is due, and take what was answered; let tiers die now and then."""
        for number, rank in enumerate(self._ranks):
            rank.set_tick(self.tick)
            waiting, rank.waiting = rank.waiting, []
            for due, job in waiting:
                tier = rank.tiers.get(job.tier)
                if due > self.tick or (tier and tier.is_blocked(job)):
                    rank.waiting.append((due, job))
                else:
                    rank.worker.submit([job])
            for result in rank.worker.poll():
                self._take(number, rank, result)
        self._live_and_die()

    def _take(self, number: int, rank: _Rank, result: JobResult) -> None:
        job = self._jobs[result.number]
        self._open[job.number] -= result.is_over
        if not self._open[job.number]:
            del self._open[job.number]
        self._moved[str(job.kind)] += result.is_over * result.statuses.count(Status.OK)
        if job.kind in {Kind.LOAD, Kind.COPY}:
            for item, status in zip(job.items, result.statuses, strict=True):
                content = rank.memory.read(item.group, item.target)
                is_good = status is Status.OK
                if is_good and content is None:
                    raise BadOutcomeError(f"{job.kind} of {item} left bytes of no block")
                self.land(item.target, content if is_good else None)
        self._results.append((number, result))

    def _live_and_die(self) -> None:
        for name in self.tiers:
            tiers = [rank.tiers[name].tier for rank in self._ranks]
            if self._dead_until.get(name, -1) < self.tick:
                for tier in tiers:
                    tier.is_dead = False
            if self.random.random() < self.share / 100:
                self.faults[DEATH] += 1
                self._dead_until[name] = self.tick + self.random.randint(1, 6)
                for tier in tiers:
                    tier.die()

    def contents(self, tier: str, key: BlockKey, slot: BlockId) -> list[bytes | None]:
        """Return what each rank has of a block in a tier; None if a fault has taken it."""
        if tier in self.tiers:
            return [self._in_tier(rank, tier, key) for rank in self._ranks]
        return [self._in_slot(rank, slot, key.group) for rank in self._ranks]

    def _in_slot(self, rank: _Rank, slot: int, group: int) -> bytes | None:
        host = rank.worker.mover.host
        raw = bytes(host.payload(slot, group)[: host.slots.used_bytes[group]])
        known = rank.slots.get((slot, group))
        if known is None or known[0] != raw:
            known = rank.slots[slot, group] = raw, rank.memory.values_of(raw, group)
        if known[1] is None:
            raise BadOutcomeError(f"slot {slot} has bytes of no block of group {group}")
        return known[1]

    def _in_tier(self, rank: _Rank, name: str, key: BlockKey) -> bytes | None:
        tier, slots = rank.tiers[name].tier, rank.worker.mover.host.slots
        if key in tier.damaged:
            return None
        change, known = tier.changes[key], rank.records.get((name, key))
        if known is None or known[0] != change:
            status, payload = tier.peek(key, slots.payload_bytes(key.group))
            content = bytes(payload[: slots.used_bytes[key.group]])
            found = rank.memory.values_of(content, key.group) if status is Status.OK else None
            known = rank.records[name, key] = change, found
        if known[1] is None:
            raise BadOutcomeError(f"the record {key} of {name} is gone, or holds no block")
        return known[1]

    def count(self, tally: Tally) -> None:
        """Add what was injected, and what was moved."""
        tally.real_faults.update(self.faults)
        tally.real_blocks.update(self._moved)

    def check(self) -> None:
        """Check every part by itself."""
        for rank in self._ranks:
            rank.worker.mover.host.check_integrity()
            for tier in rank.tiers.values():
                tier.store.check_integrity()

    def close(self) -> None:
        """End all threads."""
        for rank in self._ranks:
            rank.worker.close()
            rank.memory.pool.check_margins()
            for tier in rank.tiers.values():
                tier.tier.disk.check_integrity()


def _slots(job: Job) -> tuple[set[BlockId], set[BlockId]]:
    """The host slots that a job reads, and those that it writes."""
    reads = {item.source for item in job.items if job.kind in {Kind.LOAD, Kind.WRITE}}
    writes = {item.target for item in job.items if job.kind in {Kind.STORE, Kind.PROMOTE}}
    return reads, writes
