"""Blocks on their way from host slots into records, and records that are to go.

Every block that host memory has is written to every tier that lacks it, in the background.

Invariant: a slot is pinned from the moment in which its block is queued until no rank reads it any
more. A record is findable only after every rank has written it. While a record is being dropped,
its key is neither written nor read. A block that waits for room in the queue has no pin, and is
written if host memory still has it then. Of these there are never more than slots.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import UNKNOWN, Content, TierBlock
from kvbraid.transfer.offload.counts import Drop
from kvbraid.transfer.offload.index import TierIndex
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.status import Status

_NO_BLOCK: Final = BlockId(0)
_MAX_DROPS: Final = 1_024
"""So many records are dropped at a time; a reset may leave hundreds of thousands."""


@dataclass(slots=True, eq=False)
class _Write:
    """A block on its way into the record that is called `name`."""

    key: BlockKey
    name: BlockKey
    slot: BlockId
    content: Content
    is_bad: bool = False  # The record is not to stay.


class RecordWrites:
    """The records of one tier that are written or dropped."""

    def __init__(self, tiers: TierState, index: TierIndex) -> None:
        self._tiers: Final = tiers
        self._index: Final = index
        self._num_slots: Final = tiers.host.pool.num_blocks - 1
        self._most: Final = min(tiers.options.max_pending_writes, max(1, self._num_slots // 4))
        self._waiting: Final[OrderedDict[BlockKey, Content]] = OrderedDict()
        self._queue: Final[deque[_Write]] = deque()
        self._writes: Final[dict[BlockKey, _Write]] = {}  # Queued, or being written.
        self._written: Final[dict[int, list[_Write]]] = {}  # By job.
        self._to_drop: Final[deque[BlockKey]] = deque()
        self._dropping: Final[set[BlockKey]] = set()  # Queued, or being dropped.
        self._num_dropped = 0  # In jobs.

    def is_writing(self, key: BlockKey) -> bool:
        """Whether a record will be there."""
        return key in self._writes

    def add(self, blocks: Iterable[TierBlock]) -> None:
        """Let blocks that host memory has be written, unless the tier has them or rests."""
        for _, key, content in blocks:
            if not self._is_known(key):
                self._waiting.setdefault(key, content)
        self._queue_waiting()
        while len(self._waiting) > self._num_slots:
            self._waiting.popitem(last=False)
            self._tiers.drop(self._index.name, Drop.WRITES_FULL)

    def _is_known(self, key: BlockKey) -> bool:
        is_had = key in self._index or key in self._writes
        return is_had or self._tiers.record_key(key) in self._dropping

    def _queue_waiting(self) -> None:
        """Queue what has waited longest, as far as there is room."""
        tiers, name, slots = self._tiers, self._index.name, list[BlockId]()
        is_resting = self._is_resting
        while self._waiting and len(self._writes) < self._most:
            key, content = self._waiting.popitem(last=False)
            slot = tiers.host.slot_of(key)
            if slot is None:
                tiers.drop(name, Drop.WRITES_FULL)
            elif is_resting:
                tiers.drop(name, Drop.RESTING)
            elif not self._is_known(key):
                slots.append(slot)
                self._writes[key] = write = _Write(key, tiers.record_key(key), slot, content)
                self._queue.append(write)
        tiers.host.pins.hold(*slots)

    def take_jobs(self) -> Iterator[Job]:
        """Yield what can begin."""
        self._queue_waiting()
        num_free = 0 if self._is_resting else _MAX_DROPS - self._num_dropped
        names = [self._to_drop.popleft() for _ in range(min(num_free, len(self._to_drop)))]
        items = [Item(name.group, _NO_BLOCK, _NO_BLOCK, name) for name in names]
        self._num_dropped += len(items)
        yield from self._tiers.chunked(Kind.DROP, items, self, self._index.name)
        writes = list(self._queue)
        self._queue.clear()
        items = [Item(write.key.group, write.slot, _NO_BLOCK, write.name) for write in writes]
        for job in self._tiers.chunked(Kind.WRITE, items, self, self._index.name):
            self._written[job.number] = writes[: len(job.items)]
            del writes[: len(job.items)]
            yield job

    def answered(self, job: Job, rank: int, statuses: Sequence[Status], *, is_over: bool) -> None:
        """Nothing: a record counts once every rank has answered."""

    def settled(self, job: Job, statuses: Sequence[Status]) -> None:
        """Announce what every rank has written."""
        tiers, name = self._tiers, self._index.name
        if job.kind is Kind.DROP:
            self._dropped(job, statuses)
            return
        writes = self._written[job.number]
        for write, status in zip(writes, statuses, strict=True):
            if not write.is_bad:
                del self._writes[write.key]
            if status is Status.OK:
                tiers.write_rest.succeeded(name)
            else:
                tiers.write_rest.failed(name, tiers.clock())
                tiers.drop(name, Drop.FAILED)
            # Some rank may have written its part, and a call that hangs may still do so.
            write.is_bad |= status is not Status.OK
        good = [write for write in writes if not write.is_bad]
        for write in good[self._keep([(write.key, write.content) for write in good]) :]:
            write.is_bad = True
            tiers.drop(name, Drop.NO_SLOT)
        for write in writes:
            if write.is_bad:
                self._dropping.add(write.name)
                tiers.forget_origin(write.key)

    def _dropped(self, job: Job, statuses: Sequence[Status]) -> None:
        """Forget what is gone. What is not is neither read nor written, and dropped again."""
        for item, status in zip(job.items, statuses, strict=True):
            assert item.key is not None
            if status is Status.OK:
                self._dropping.discard(item.key)
            else:
                self._tiers.write_rest.failed(self._index.name, self._tiers.clock())
                self._to_drop.append(item.key)

    def over(self, job: Job) -> None:
        """Free the slots of a job, and drop what is not to stay."""
        if job.kind is Kind.DROP:
            self._num_dropped -= len(job.items)
            return
        writes = self._written.pop(job.number)
        self._tiers.host.pins.free(*[write.slot for write in writes])
        self._to_drop.extend(write.name for write in writes if write.is_bad)

    def opened(self, key: BlockKey) -> None:
        """Take in a record that the tier has without having been told to."""
        if not self._is_known(key) and not self._keep([(key, UNKNOWN)]):
            self.discard(key)

    def _keep(self, records: Sequence[tuple[BlockKey, Content]]) -> int:
        """Make records findable, and drop those that were used longest ago if there is no room.

        Returns how many of the first: fewer than all if no other place is free.
        """
        num_kept = 0
        while taken := self._index.take(len(records) - num_kept):
            for _, evicted in taken:
                if evicted is not None:
                    self._tiers.gone(self._index, evicted, Drop.EVICTED)
                    self.discard(evicted)
            kept = zip(taken, records[num_kept:], strict=False)
            blocks = [TierBlock(slot, key, content) for (slot, _), (key, content) in kept]
            self._tiers.announce(self._index, blocks)
            self._index.pins.free(*[slot for slot, _ in taken])
            num_kept += len(taken)
        return num_kept

    def discard(self, key: BlockKey) -> None:
        """Have a record dropped that is not findable."""
        name = self._tiers.record_key(key)
        if name not in self._dropping:
            self._dropping.add(name)
            self._to_drop.append(name)

    def retract(self, key: BlockKey) -> bool:
        """Make sure that a block is never read from here; return whether it could have been."""
        is_found, write = self._index.forget(key), self._writes.pop(key, None)
        self._waiting.pop(key, None)
        if is_found:
            self.discard(key)
        if write is not None:
            self._cancel(write)
        return is_found or write is not None

    def reset(self) -> None:
        """Forget and drop all records, those included that are being written."""
        num_writes = len(self._writes)
        self.close()
        keys = self._index.clear()
        for key in keys:
            self.discard(key)
        self._tiers.drop(self._index.name, Drop.RESET, num_writes + len(keys))

    def close(self) -> None:
        """Write nothing more; what is being written is pinned until it is over."""
        self._waiting.clear()
        for key in list(self._writes):
            self._cancel(self._writes.pop(key))

    def _cancel(self, write: _Write) -> None:
        self._tiers.forget_origin(write.key)
        if write in self._queue:
            self._queue.remove(write)
            self._tiers.host.pins.free(write.slot)
        else:  # It may still land, so nothing else is written there before it is dropped.
            write.is_bad = True
            self._dropping.add(write.name)

    @property
    def num_queued(self) -> int:
        """Writes that are in no job yet."""
        return len(self._queue) + len(self._waiting)

    @property
    def num_drops_queued(self) -> int:
        """Records to drop that are in no job."""
        return len(self._to_drop)

    @property
    def _is_resting(self) -> bool:
        return self._tiers.write_rest.is_cooling(self._index.name, self._tiers.clock())

    def slots(self) -> list[BlockId]:
        """Return the host slots that are pinned for writes."""
        written = [write.slot for writes in self._written.values() for write in writes]
        return [write.slot for write in self._queue] + written

    def check_integrity(self) -> None:
        """Assert the invariant of this tier."""
        assert len(self._waiting) <= self._num_slots, "more blocks wait than there are slots"
        found = map(self._tiers.record_key, self._index.keys.values())
        assert self._dropping.isdisjoint(found), "a record that goes is found"
        assert not any(key in self._index for key in self._writes), "a record is written twice"
        assert {*self._to_drop} <= self._dropping, "a queued drop is not known"
        assert 0 <= self._num_dropped <= _MAX_DROPS, "too many records are dropped at a time"
