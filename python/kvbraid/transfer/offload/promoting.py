"""Records on their way into host slots.

Invariant: a record is read once at a time, however many wait for it. While it is read, its place
in the index is pinned, and so is the slot until no rank writes it any more. What every rank has
read and verified is findable in host memory, and pinned once more by each who waits for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import Content, TierBlock
from kvbraid.transfer.offload.counts import Drop
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.offload.writing import RecordWrites
from kvbraid.transfer.status import Status

_NO_BLOCK: Final = BlockId(0)
_SPOILT: Final = frozenset({Status.MISS, Status.SHORT, Status.CORRUPT, Status.FOREIGN})


class RecordWaiter(Protocol):
    """Whoever waits for a record."""

    def promoted(self, key: BlockKey, slot: BlockId) -> None:
        """Learn that host memory has the block. The slot is pinned for the waiter."""

    def not_promoted(self, key: BlockKey, tier: str, status: Status) -> None:
        """Learn that the record could not be read."""


@dataclass(slots=True, eq=False)
class _Promotion:
    key: BlockKey
    tier: str
    record: BlockId
    content: Content
    waiters: list[RecordWaiter] = field(default_factory=list)
    slot: BlockId = _NO_BLOCK
    is_cancelled: bool = False


class Promotions:
    """The records that are read, or will be. `on_promoted` is told of those that were."""

    def __init__(
        self,
        tiers: TierState,
        writes: Mapping[str, RecordWrites],
        on_promoted: Callable[[Sequence[TierBlock]], None],
    ) -> None:
        self._tiers: Final = tiers
        self._writes: Final = writes
        self._on_promoted: Final = on_promoted
        self._promotions: Final[dict[BlockKey, _Promotion]] = {}  # Queued, or being read.
        self._read: Final[dict[int, list[_Promotion]]] = {}  # By job.

    def want(self, records: Iterable[tuple[BlockKey, str, Content]], waiter: RecordWaiter) -> None:
        """Read records of tiers into host memory, soon. Answers may come at once."""
        tiers, places = self._tiers, dict[str, list[BlockId]]()
        for key, tier, content in records:
            known = self._promotions.get(key)
            if (slot := tiers.host.slot_of(key)) is not None:
                tiers.host.pins.hold(slot)
                waiter.promoted(key, slot)
            elif known is not None:
                known.waiters.append(waiter)
            elif (place := tiers.records[tier].slot_of(key)) is None:
                waiter.not_promoted(key, tier, Status.MISS)
            else:
                places.setdefault(tier, []).append(place)
                self._promotions[key] = _Promotion(key, tier, place, content, [waiter])
        for tier, held in places.items():
            tiers.records[tier].pins.hold(*held)

    def leave(self, waiter: RecordWaiter) -> None:
        """Tell somebody nothing any more. What nobody waits for is not read."""
        for promotion in list(self._promotions.values()):
            promotion.waiters = [each for each in promotion.waiters if each is not waiter]
            if not promotion.waiters and not promotion.slot:
                self._end([promotion], promotion.tier)

    def take_jobs(self) -> Iterator[Job]:
        """Yield what can begin, as far as there are slots."""
        tiers, ready = self._tiers, dict[str, list[_Promotion]]()
        room = tiers.options.max_promotions - sum(map(len, self._read.values()))
        queued = [each for each in self._promotions.values() if not each.slot][:room]
        for promotion, slot in zip(queued, tiers.take_slots(len(queued)), strict=False):
            promotion.slot = slot
            ready.setdefault(promotion.tier, []).append(promotion)
        for tier, promotions in ready.items():
            named = [(p, tiers.record_key(p.key)) for p in promotions]
            items = [Item(name.group, _NO_BLOCK, p.slot, name) for p, name in named]
            for job in tiers.chunked(Kind.PROMOTE, items, self, tier):
                self._read[job.number] = promotions[: len(job.items)]
                del promotions[: len(job.items)]
                yield job

    def answered(self, job: Job, rank: int, statuses: Sequence[Status], *, is_over: bool) -> None:
        """Nothing: a block counts once every rank has read its part."""

    def settled(self, job: Job, statuses: Sequence[Status]) -> None:
        """Announce what every rank has read; drop what is bad; answer those who wait."""
        tiers, blocks, new = self._tiers, list[TierBlock](), list[TierBlock]()
        waiters = list[tuple[RecordWaiter, TierBlock]]()
        settled = [
            (promotion, status)
            for promotion, status in zip(self._read[job.number], statuses, strict=True)
            if not promotion.is_cancelled
        ]
        for promotion, status in settled:
            if status is not Status.OK:
                self._spoil(promotion, status)
                self._fail(promotion, status)
                continue
            known = tiers.host.slot_of(promotion.key)  # It may have been stored in the meantime.
            block = TierBlock(known or promotion.slot, promotion.key, promotion.content)
            blocks.append(block)
            if known is None:
                new.append(block)
            waiters += [(waiter, block) for waiter in promotion.waiters]
        tiers.announce(tiers.host, new)
        tiers.host.pins.hold(*[block.slot for _, block in waiters])
        for waiter, block in waiters:
            waiter.promoted(block.key, block.slot)
        self._on_promoted(blocks)
        self._end([promotion for promotion, _ in settled], job.tier)

    def _spoil(self, promotion: _Promotion, status: Status) -> None:
        if status not in _SPOILT or not self._tiers.records[promotion.tier].forget(promotion.key):
            return
        tiers = self._tiers
        tiers.gone(tiers.records[promotion.tier], promotion.key, Drop.SPOILT)
        if status is not Status.FOREIGN:  # Another's record is left alone.
            self._writes[promotion.tier].discard(promotion.key)

    def _fail(self, promotion: _Promotion, status: Status) -> None:
        for waiter in promotion.waiters:
            waiter.not_promoted(promotion.key, promotion.tier, status)
        promotion.waiters = []

    def _end(self, promotions: Sequence[_Promotion], tier: str) -> None:
        """Forget promotions from a tier; their slots are pinned until their jobs are over."""
        for promotion in promotions:
            del self._promotions[promotion.key]
        self._tiers.records[tier].pins.free(*[promotion.record for promotion in promotions])

    def over(self, job: Job) -> None:
        """Free the slots of a job."""
        slots = [promotion.slot for promotion in self._read.pop(job.number)]
        self._tiers.host.pins.free(*slots)

    def retract(self, key: BlockKey) -> None:
        """Let a block that is being read be no good."""
        promotion = self._promotions.get(key)
        if promotion is not None:
            promotion.is_cancelled = True
            self._fail(promotion, Status.MISS)
            self._end([promotion], promotion.tier)

    def reset(self) -> None:
        """Let everything that is being read be no good."""
        for key in list(self._promotions):
            self.retract(key)

    @property
    def num_queued(self) -> int:
        """Records that are in no job yet."""
        return sum(not promotion.slot for promotion in self._promotions.values())

    def slots(self) -> list[BlockId]:
        """Return the host slots that records are read into."""
        return [promotion.slot for promotions in self._read.values() for promotion in promotions]

    def places(self, tier: str) -> list[BlockId]:
        """Return the places in a tier's index that are pinned."""
        return [p.record for p in self._promotions.values() if p.tier == tier]
