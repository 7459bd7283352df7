"""What all parts of the manager share: the indexes, the events, the jobs, and the clock.

Invariant: a block is findable in an index exactly from its announcement to its removal event. A
record has the name of its block until the first reset. From then on it has a name that nobody else
can know, and another one after each reset: no other engine, and no later one, takes it for a block
of the weights that its namespace names.
"""

from collections.abc import Callable, Iterable, Sequence
from secrets import randbits
from typing import Final

from kvbraid.cache import CacheManager
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.recovery.decision.policy import Cooldowns
from kvbraid.resume import hash_block_size
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import Announcer, KnownRequests, TierBlock
from kvbraid.transfer.offload.counts import Drop, OffloadCounts
from kvbraid.transfer.offload.index import Pins, TierIndex
from kvbraid.transfer.offload.options import OffloadOptions, RecordTier
from kvbraid.transfer.offload.retracting import Origins
from kvbraid.transfer.offload.tracking import JobOwner, JobTable

_MASK_BITS: Final = 512
"""No hash of a block is longer."""


class TierState:
    """The tiers of one cache.

    Attributes:
        device: The blocks of the cache that are held.
        host: The index of host memory.
        records: The indexes of the tiers below, nearest first.
        origins: Which device blocks their copies came from.
        is_written: Whether a block is on its way into a record.
    """

    def __init__(
        self,
        cache: CacheManager,
        host_slots: int,
        tiers: Sequence[RecordTier],
        options: OffloadOptions,
        num_ranks: int,
    ) -> None:
        names = [options.host_name, *(tier.name for tier in tiers)]
        if len({*names}) < len(names):
            raise InvalidValueError(f"the tiers are {', '.join(names)}; give each its own name")
        topology = cache.config.topology
        self.cache: Final = cache
        self.topology: Final = topology
        self.options: Final = options
        self.num_ranks: Final = num_ranks
        self.counts: Final = OffloadCounts()
        self.jobs: Final = JobTable(num_ranks, self.counts)
        self.device: Final = Pins(cache.pool)
        self.host: Final = TierIndex(topology, options.host_name, "CPU", host_slots)
        self.records: Final = {
            name: TierIndex(topology, name, "STORAGE", count) for name, count in tiers
        }
        self.announcer: Final = Announcer(topology, [self.host, *self.records.values()])
        self.origins: Final = Origins(options.max_origins, self.counts)
        self.is_written: Callable[[BlockKey], bool] = lambda _: False
        self.requests: Final = KnownRequests(topology, options.max_known_requests)
        self.unit: Final = hash_block_size(topology)
        self.clock: Callable[[], float] = lambda: self.num_steps
        self.num_steps = 0
        self._mask = 0
        failures, rest = options.failures_before_rest, options.rest
        self.write_rest: Final = Cooldowns(failures=failures, duration=rest)
        self.read_rest: Final = Cooldowns(failures=1, duration=rest)

    def chunked(
        self, kind: Kind, items: Sequence[Item], owner: JobOwner, tier: str = ""
    ) -> Iterable[Job]:
        """Yield jobs of a few items each."""
        most = self.options.max_job_items
        for start in range(0, len(items), most):
            yield self.jobs.issue(kind, items[start : start + most], owner, tier)

    def drop(self, tier: str, why: Drop, count: int = 1) -> None:
        """Count blocks that are not stored, or no longer had."""
        self.counts.drops[tier, why] += count

    def take_slots(self, count: int) -> list[BlockId]:
        """Take host slots, whatever they hold; fewer if the others are pinned."""
        taken = self.host.take(count)
        for _, evicted in taken:
            if evicted is not None:
                self.gone(self.host, evicted, Drop.EVICTED)
        return [slot for slot, _ in taken]

    def rename_records(self) -> None:
        """Give all records that are written from now on names that nobody else knows."""
        self._mask = randbits(_MASK_BITS)

    @property
    def are_renamed(self) -> bool:
        """Whether records that this engine has not written are no good any more."""
        return self._mask > 0

    def record_key(self, key: BlockKey) -> BlockKey:
        """Return what the record of a block is called, or the block whose record is called so."""
        if not self._mask:
            return key
        num_bytes = len(key.block_hash)
        mask = self._mask & ((1 << 8 * num_bytes) - 1)
        name = int.from_bytes(key.block_hash, "big") ^ mask
        return BlockKey(name.to_bytes(num_bytes, "big"), key.group)

    def gone(self, index: TierIndex, key: BlockKey, why: Drop) -> None:
        """Count a block that a tier lacks now."""
        self.drop(index.name, why)
        self.forget_origin(key)

    def forget_origin(self, key: BlockKey) -> None:
        """Forget where a block came from if no tier has it, or will."""
        if key in self.host or self.is_written(key):
            return
        for index in self.records.values():
            if key in index:
                return
        self.origins.forget(key)

    def announce(self, index: TierIndex, blocks: Sequence[TierBlock]) -> None:
        """Make blocks findable in a tier, and say so."""
        for slot, key, content in blocks:
            index.add(slot, key, content.num_tokens)
        self.announcer.stored(index, blocks)
