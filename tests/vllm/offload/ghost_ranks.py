"""Ranks that carry jobs out on blocks that know what they hold, one of our schedulers over them.

Invariant: what a job moves is there once the last rank has answered it, and not before; an item
that any rank could not move leaves garbage. All that crosses is pickled.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar, Final

from kvbraid.transfer.host import HostSlots
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status

from tests.vllm.recovery.ghost_engine import GhostEngine

if True:  # Only after `ghost_engine` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm.offload.messages import OffloadReport, RankFacts, RankNews

NUM_RANKS: Final = 2
FAILURES: Final = {
    Kind.STORE: (Status.IO_ERROR, Status.FULL),
    Kind.LOAD: (Status.IO_ERROR,),
    Kind.COPY: (Status.IO_ERROR,),
    Kind.WRITE: (Status.FULL, Status.IO_ERROR, Status.TIMEOUT),
    Kind.PROMOTE: (Status.MISS, Status.SHORT, Status.CORRUPT, Status.FOREIGN, Status.IO_ERROR),
    Kind.DROP: (Status.IO_ERROR,),
}


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    ranks: set[int]
    failed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Ranks:
    """`blocks` are the device's, `slots` and `records` what tiers hold: each has its tokens."""

    blocks: dict[int, dict[int, int]]
    random: Random
    chance_of_failure: float = 0.0
    slots: dict[int, dict[int, int]] = field(default_factory=dict)
    records: dict[BlockKey, dict[int, int]] = field(default_factory=dict)
    num_moved: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    num_failed: int = 0
    _running: list[_Running] = field(default_factory=list)
    _garbage: Iterator[int] = field(default_factory=lambda: count(1 << 40))

    def execute(self, metadata: Any) -> OffloadReport | None:  # noqa: ANN401 - vLLM's own type.
        """Begin what a step brings, and go on with the rest; return what all ranks say."""
        told = pickle.loads(pickle.dumps(metadata))
        self._running += [_Running(job, set(range(NUM_RANKS))) for job in told.jobs]
        said: OffloadReport | None = None
        for rank in range(NUM_RANKS):
            results = tuple(self._answers(rank))
            if results:
                report = OffloadReport(ranks={rank: RankNews(results=results)})
                report = pickle.loads(pickle.dumps(report))
                said = report if said is None else said.aggregate(report)
        return said

    def _answers(self, rank: int) -> Iterator[JobResult]:
        for running in list(self._running):
            if rank in running.ranks and self.random.random() < 0.6:
                job = running.job
                statuses = tuple(self._status(running, at) for at in range(len(job.items)))
                running.ranks.remove(rank)
                if not running.ranks:
                    self._running.remove(running)
                    for at, item in enumerate(job.items):
                        self._move(job.kind, item, is_good=at not in running.failed)
                yield JobResult(number=job.number, statuses=statuses)

    def _status(self, running: _Running, at: int) -> Status:
        kind, item = running.job.kind, running.job.items[at]
        if kind is Kind.PROMOTE and item.key not in self.records:
            running.failed.add(at)
            return Status.MISS
        if self.random.random() >= self.chance_of_failure:
            return Status.OK
        running.failed.add(at)
        self.num_failed += 1
        return self.random.choice(FAILURES[kind])

    def _move(self, kind: Kind, item: Item, *, is_good: bool) -> None:
        self.num_moved[kind] += 1
        moves: dict[Kind, Callable[[], None]] = {
            Kind.STORE: lambda: self._copy(self.blocks, self.slots, item, is_good=is_good),
            Kind.LOAD: lambda: self._copy(self.slots, self.blocks, item, is_good=is_good),
            Kind.COPY: lambda: self._copy(self.blocks, self.blocks, item, is_good=is_good),
            Kind.WRITE: lambda: self._write(item, is_good=is_good),
            Kind.PROMOTE: lambda: self._promote(item, is_good=is_good),
            Kind.DROP: lambda: self._drop(item),
        }
        moves[kind]()

    def _copy(
        self,
        source: dict[int, dict[int, int]],
        target: dict[int, dict[int, int]],
        item: Item,
        *,
        is_good: bool,
    ) -> None:
        held = dict(source.get(item.source, {}))
        target[item.target] = held if is_good else self._spoilt(held)

    def _spoilt(self, held: dict[int, int]) -> dict[int, int]:
        return {place: -next(self._garbage) for place in held}

    def _write(self, item: Item, *, is_good: bool) -> None:
        assert item.key is not None
        if is_good:
            self.records[item.key] = dict(self.slots[item.source])

    def _promote(self, item: Item, *, is_good: bool) -> None:
        assert item.key is not None
        held = self.records.get(item.key, {0: 0})
        self.slots[item.target] = dict(held) if is_good else self._spoilt(held)

    def _drop(self, item: Item) -> None:
        assert item.key is not None
        self.records.pop(item.key, None)


class OffloadingEngine(GhostEngine):
    """A ghost engine whose blocks are offloaded, with `NUM_SLOTS` of host memory and a disk.

    `records` are on the disk at its start.
    """

    CONNECTOR = "OffloadConnector"
    MODULE = "kvbraid.integrations.vllm.offload"
    NUM_SLOTS: Final = 28
    EXTRA: ClassVar[dict[str, object]] = {
        "host_bytes": NUM_SLOTS * 4_096,
        "disk_directory": "/nowhere",  # Nobody opens it: there are no workers.
        "disk_bytes": 200 * 8_192,
        "rest_seconds": 1e-6,
    }

    def __init__(
        self,
        *given: Any,  # noqa: ANN401 - passed on.
        seed: int,
        records: Sequence[BlockKey] = (),
        **more: Any,  # noqa: ANN401 - passed on.
    ) -> None:
        super().__init__(*given, **more)
        num_groups = len(self.worker.groups)
        slots = HostSlots(
            used_bytes=(4_096,) * num_groups, slot_bytes=4_096, num_slots=self.NUM_SLOTS
        )
        facts = {
            (0, rank): RankFacts(
                rank=rank, slots=slots, layout="ghost", records={"disk": tuple(records)}
            )
            for rank in range(NUM_RANKS)
        }
        offloading: Any = self.connector
        offloading.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(facts)))
        self.offload = offloading._decisions.offload
        self.ranks = Ranks(self.worker.blocks, Random(seed))

    def step(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        output = self.scheduler.schedule()
        result = self.worker.execute(output, [])
        report = self.ranks.execute(output.kv_connector_metadata)
        result.kv_connector_output.kv_connector_worker_meta = report
        self._steps.append((output, result))
        if len(self._steps) >= self._depth:
            self.process()
        return output

    def check_integrity(self) -> None:
        self.offload.check_integrity()
        with_held = self.recovery.held_blocks + self.offload.held_blocks
        made = self.scheduler
        held = [block.block_id for _, blocks in made.deferred_frees for block in blocks]
        made.kv_cache_manager.cache.debug.check_integrity(held + with_held)
        self.check_outputs()

    def change_weights(self, *, preempts: bool) -> bool:
        """Load new weights, if nothing that has blocks is left; whatever was computed is garbage.

        Tiers forget in any case, but where preempted requests are still being loaded: vLLM raises.
        A pause that preempts has let the steps under way end.
        """
        while preempts and self._steps:
            self.process()
        try:
            is_reset = self.scheduler.reset_prefix_cache(preempts, reset_connector=True)
        except RuntimeError:
            return False
        assert not any(self.offload.num_blocks().values())
        self.worker.weights += is_reset
        return bool(is_reset)

    def told(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return what each medium has, by group and hash, as all events say."""
        found = {medium: Counter[tuple[int, int]]() for medium in ("GPU", "CPU", "STORAGE")}
        for event in (event for batch in self.published for event in batch.events):
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                found["GPU"].clear()
                continue
            sign = 1 if kind == "BlockStored" else -1
            for block_hash in event.block_hashes:
                found[event.medium][event.group_idx, block_hash] += sign
        return {medium: +counts for medium, counts in found.items()}

    def had(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return what each medium has."""
        cached = self.scheduler.kv_cache_manager.cache.debug.cached()
        device = {(group, _short(key)): len(blocks) for (group, key), blocks in cached.items()}
        tiers = self.offload._tiers
        return {"GPU": Counter(device)} | {
            index.medium: Counter(
                (key.group, _short(key.block_hash)) for key in index.keys.values()
            )
            for index in (tiers.host, *tiers.records.values())
        }

    def finish(self, most: int = 600) -> None:
        super().finish(most)
        for _ in range(most):
            if not self.scheduler.has_requests():
                return
            self.step()
            while self._steps:
                self.process()
        raise AssertionError(f"{self.offload.num_pending} blocks move without end")


def _short(block_hash: bytes) -> int:
    """Return a hash as events have it."""
    return int.from_bytes(block_hash[-8:], "big")
