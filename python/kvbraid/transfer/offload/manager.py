"""Decides which blocks of a cache are stored and loaded: the scheduler's side of moving blocks.

    scheduled -> take_findable, begin_load, end_schedule -> take_jobs -> the ranks
    update    -> finished(rank, results) -> take_reports, take_events;  step_ended

Invariant: every pin has its reason, and no reason outlives the last rank that reads or writes what
is pinned. Once no job, look-up or load is left, nothing is pinned. No call waits, or raises for
what ranks and tiers say.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Final

from kvbraid.cache import CacheManager, KeptState, TierMatch
from kvbraid.errors import InvalidValueError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, LoadReport, Record, Target
from kvbraid.reading import POSITIVE, POSITIVE_COUNT, check
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import TierBlock, TierEvent
from kvbraid.transfer.offload.attributing import tokens_by_tier
from kvbraid.transfer.offload.counts import Drop, OffloadCounts
from kvbraid.transfer.offload.index import TierIndex
from kvbraid.transfer.offload.loading import Copied, LoadsUnderWay
from kvbraid.transfer.offload.lookup import Again, Found, LookUps
from kvbraid.transfer.offload.options import OffloadOptions, RecordTier
from kvbraid.transfer.offload.promoting import Promotions
from kvbraid.transfer.offload.storing import Stores
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.offload.writing import RecordWrites


class OffloadManager:
    """The tiers below one cache. An engine calls it in each of its steps:

        manager.lookup(request, ...)                # A request starts: what can be loaded?
        manager.begin_load(number, step, targets, request)   # It got its blocks.
        manager.end_schedule(step, work.kept_states)         # The step is scheduled.
        jobs = manager.take_jobs()                  # Give these to every rank, in their order.
        ...                                         # The step runs.
        manager.step_ended(step)                    # Now its blocks may be read.
        manager.finished(rank, results)             # A rank has answered.
        reports = manager.take_reports()            # What ranks say of loads.
        events = manager.take_events()              # Publish these after those of the cache.

    Ranks run jobs in any order. A job that is taken after a step was scheduled may run beside that
    step, but not before the steps before it have run. The slots of host memory are numbered from
    1. All blocks are said as numbers: no bytes are here.

    Args:
        cache: The cache, with `CacheConfig.findable`.
        host_slots: The slots of host memory.
        tiers: The tiers below it, nearest first, and how many records each keeps.
        options: The limits.
        num_ranks: How many ranks have a part of each block. A block counts as stored once all
            of them have stored their parts.
        clock: The time, for deadlines; None: the number of ended schedules.

    Raises:
        InvalidValueError: The cache does not list what is findable, a number is out of range, or
            two tiers have one name.
    """

    def __init__(
        self,
        cache: CacheManager,
        *,
        host_slots: int,
        tiers: Sequence[tuple[str, int]] = (),
        options: OffloadOptions | None = None,
        num_ranks: int = 1,
        clock: Callable[[], float] | None = None,
    ) -> None:
        options = options or OffloadOptions()
        check("host_slots", host_slots, POSITIVE_COUNT)
        check("num_ranks", num_ranks, POSITIVE)
        named = [RecordTier(*tier) for tier in tiers]
        for tier in named:
            check(f"num_records of tier {tier.name!r}", tier.num_records, POSITIVE_COUNT)
        if not cache.config.findable:
            what = "CacheConfig.findable is False; expected True, to know what can be stored"
            raise InvalidValueError(what)
        self._tiers: Final = TierState(cache, host_slots, named, options, num_ranks)
        if clock is not None:
            self._tiers.clock = clock
        self._tiers.is_written = self._is_written
        indexes = self._tiers.records.items()
        self._writes: Final = {name: RecordWrites(self._tiers, i) for name, i in indexes}
        self._stores: Final = Stores(self._tiers, self._write_through)
        self._promotions: Final = Promotions(self._tiers, self._writes, self._write_through)
        self._lookups: Final = LookUps(self._tiers, self._promotions)
        self._loads: Final = LoadsUnderWay(self._tiers, self._promotions, self._lookups.free)
        self._opened: Final[dict[tuple[str, BlockKey], set[int]]] = {}
        self._most_opened: Final = 2 * sum(tier.num_records for tier in named)

    # A request starts.

    def lookup(
        self,
        request: int,
        tokens: Sequence[int] = (),
        *,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        refused: Collection[str] = (),
        may_wait: bool = True,
        whole_blocks: bool = False,
    ) -> Found | Again | None:
        """Return what a request that the cache knows can load; None for nothing.

        With `may_wait`, records are read into host memory and verified before they are offered:
        `ASK_AGAIN` until they are there, and after `promote_deadline` what host memory has.
        Without it, an offer may name records; the load reads them first. What is offered is pinned
        until `begin_load`, the next look-up of this request, or `end_schedule`.

        Args:
            request: The request.
            tokens: Its tokens, for events; without them, events of its blocks are placeholders.
            extra: What keeps its blocks apart from those of others.
            refused: Tiers that must not be read.
            may_wait: Whether the caller can ask again.
            whole_blocks: Whether a load must not end inside a block of a group.
        """
        return self._lookups.lookup(
            request, tokens, extra, refused, may_wait=may_wait, whole_blocks=whole_blocks
        )

    def match_over(self, request: int, refused: Collection[str] = ()) -> TierMatch:
        """Return how much a request can reuse now, without asking for it: changes nothing."""
        return self._lookups.match_over(request, refused)[0]

    def tokens_by_tier(self, found: Found, num_tokens: int) -> dict[str, int]:
        """Split the first tokens of an offer by the tier that they come from; "" for the pool."""
        tiers = ["", *(index.name for index in self._indexes)]
        return tokens_by_tier(found, num_tokens, self._tiers.topology.groups, tiers)

    def begin_load(self, number: int, step: int, targets: Sequence[Target], request: int) -> None:
        """Begin the load of a request's latest offer, in this step.

        Every rank reports its end, in `take_reports`, and the positions that were not filled: also
        those of `targets` that the offer does not have.

        Args:
            number: The load's number, which no other load has had.
            step: The step in which it begins. What it copies from blocks of the pool waits for
                that step's end.
            targets: The blocks to fill. Whoever owns them keeps them until all ranks have ended.
            request: The request.

        Raises:
            InvalidValueError: Nothing is offered to the request, or the load has begun already.
        """
        found = self._lookups.take(request)
        if found is None or number in self._loads.numbers:
            what = f"load {number} of request {request} has no offer, or has begun"
            raise InvalidValueError(f"{what}; look the request up in the same schedule")
        self._loads.begin(number, step, targets, found)

    def forget_request(self, request: int) -> None:
        """Forget a request that has ended or was aborted. Its loads go on until they are over."""
        self._lookups.forget(request)
        self._tiers.requests.forget(request)

    # A step.

    def end_schedule(
        self,
        step: int | None,
        kept_states: Sequence[KeptState] = (),
    ) -> None:
        """Note that a step was scheduled, or that there is none (None): a tick of the clock.

        What became findable is held, to be stored when the step has run. Offers without a load are
        withdrawn.

        Args:
            step: The step's number.
            kept_states: Those of `CacheManager.take_work`, and those that `take_state_tails` has
                named of requests that were released since.
        """
        self._lookups.end_schedule()
        self._tiers.num_steps += 1
        if step is not None:
            self._stores.take_findable(step, kept_states)

    def step_ended(self, step: int) -> None:
        """Note that a step, and all before it, have run: their blocks may be read."""
        self._stores.step_ended(step)
        self._loads.step_ended(step)

    def take_jobs(self) -> list[Job]:
        """Return the jobs that can begin, for every rank."""
        parts: Iterable[Iterable[Job]] = (
            self._loads.take_jobs(),
            self._stores.take_jobs(),
            self._promotions.take_jobs(),
            *(writes.take_jobs() for writes in self._writes.values()),
        )
        return list(chain.from_iterable(parts))

    def finished(self, rank: int, results: Sequence[JobResult]) -> None:
        """Take what a rank says of its jobs. What cannot be meant is counted, never raised."""
        self._tiers.jobs.finished(rank, results)
        self._loads.failed_early()

    def take_reports(self) -> list[LoadReport]:
        """Return what ranks say of loads since the last call."""
        return self._loads.take_reports()

    def take_events(self) -> list[TierEvent]:
        """Return what tiers have got and lost since the last call, in order.

        At most 8,192 blocks at once. The next calls tell of the rest; see `has_news`.
        """
        return self._tiers.announcer.take()

    def tell_again(self) -> None:
        """Let `take_events` tell again what tiers have. Call it after a reset of the cache, whose
        event has a fleet doubt it."""
        self._tiers.announcer.tell_again()

    @property
    def has_news(self) -> bool:
        """Whether tiers have got or lost something that `take_events` has not told yet."""
        return not self._tiers.announcer.is_empty

    # What tiers say by themselves.

    def opened(self, tier: str, keys: Iterable[BlockKey], rank: int = 0) -> None:
        """Take in records that a tier has: at its start, or found since. Each rank says its own.

        Give those first that were used longest ago. What does not fit is dropped from the tier.
        After a `reset`, nothing is taken in.

        Raises:
            InvalidValueError: There is no such tier.
        """
        self._index(tier)
        if self._tiers.are_renamed:
            return
        for key in keys:
            ranks = self._opened.setdefault((tier, key), set())
            ranks.add(rank)
            if len(ranks) == self._tiers.num_ranks:
                del self._opened[tier, key]
                self._writes[tier].opened(key)
            elif len(self._opened) > self._most_opened:
                del self._opened[next(iter(self._opened))]

    def vanished(self, tier: str, keys: Iterable[BlockKey]) -> None:
        """Forget records that a tier has dropped by itself.

        Raises:
            InvalidValueError: There is no such tier.
        """
        index = self._index(tier)
        for key in map(self._tiers.record_key, keys):
            self._opened.pop((tier, key), None)
            if index.forget(key):
                self._tiers.gone(index, key, Drop.EVICTED)

    def _index(self, tier: str) -> TierIndex:
        if tier not in self._tiers.records:
            names = ", ".join(self._tiers.records) or "none"
            raise InvalidValueError(f"there is no tier {tier!r}; those with records are {names}")
        return self._tiers.records[tier]

    # What recovery asks: `kvbraid.loads.Tiers`.

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        """Make sure that nothing copied from these blocks is ever loaded; see `Tiers`.

        Call it before the blocks lose their hashes. Loads under way that read such a copy, or one
        of the blocks, fail where they do. A load that has read a record was begun when the pool
        did not have the block any more: if such a load has ended, nobody is told.

        Returns where loads that have ended have copied one of the blocks, if a hash finds there
        what they have copied, registered by the same request: otherwise it holds something else
        by now. If a request has registered the same twice in one block, both count.
        """
        blocks = {*block_ids}
        held = Copied.of(self._tiers.cache, [*block_ids])
        copied = self._loads.copied_from({each for each in held if each.block_hash})
        self._stores.cancel(blocks)
        keys = self._tiers.origins.keys_of(blocks)
        for key in keys:
            self._retract(key)
        self._loads.retract(keys, blocks)
        return copied

    def _retract(self, key: BlockKey) -> None:
        self._tiers.origins.forget(key)
        self._promotions.retract(key)
        for index in self._indexes:
            writes = self._writes.get(index.name)
            if writes.retract(key) if writes else index.forget(key):
                self._tiers.drop(index.name, Drop.RETRACTED)

    def drop(self, record: Record) -> None:
        """Drop a record that is missing, short or corrupt."""
        try:
            key = BlockKey.from_bytes(record.key)
        except InvalidValueError:
            return
        tiers = self._tiers
        index = tiers.host if record.tier == tiers.host.name else tiers.records.get(record.tier)
        if index is not None and not record.is_foreign and index.forget(key):
            tiers.gone(index, key, Drop.SPOILT)
            if index is not tiers.host:
                self._writes[index.name].discard(key)

    def reset(self) -> None:
        """Forget all that tiers hold, because what computed it is no longer what computes.

        Nothing that was stored, or is being stored, is offered from now on. Loads under way fail
        at every position. Records are dropped in the background. Those that are written from now
        on have names that no other engine knows, and no later one; those of others are not taken
        in any more. Call it between two schedules, after the cache's own reset.
        """
        tiers = self._tiers
        self._lookups.close()
        self._loads.reset()
        self._promotions.reset()
        tiers.cache.tiers.take_findable()
        self._stores.close(Drop.RESET)
        for writes in self._writes.values():
            writes.reset()
        tiers.drop(tiers.host.name, Drop.RESET, len(tiers.host.clear()))
        tiers.origins.clear()
        self._opened.clear()
        tiers.rename_records()

    def back_off(self, record: Record) -> None:
        """Do not read the record's tier for a while; the record stays."""
        self._tiers.read_rest.failed(record.tier, self._tiers.clock())

    # What was stored goes on to the tiers below.

    def _write_through(self, blocks: Sequence[TierBlock]) -> None:
        for writes in self._writes.values():
            writes.add(blocks)

    def _is_written(self, key: BlockKey) -> bool:
        return any(writes.is_writing(key) for writes in self._writes.values())

    # The end, and views.

    def close(self) -> None:
        """Begin nothing more. What is under way stays pinned until it is over."""
        self._lookups.close()
        self._stores.close()
        for writes in self._writes.values():
            writes.close()

    @property
    def num_pending(self) -> int:
        """Jobs under way, and blocks that wait for one: while there are any, keep stepping.

        Records that are to be dropped wait for the next step: vLLM resets before it sleeps.
        """
        pending = self.counts.num_pending
        return len(self._tiers.jobs) + pending.total() - pending[Kind.DROP]

    @property
    def counts(self) -> OffloadCounts:
        """What was counted so far. It is the manager's own: read it, or copy it."""
        counts, jobs = self._tiers.counts, self._tiers.jobs
        pending = {kind: jobs.count_items(kind) for kind in Kind}
        pending[Kind.STORE] += self._stores.num_waiting
        pending[Kind.PROMOTE] += self._promotions.num_queued
        pending[Kind.LOAD] += self._loads.num_open
        pending[Kind.WRITE] += sum(writes.num_queued for writes in self._writes.values())
        pending[Kind.DROP] += sum(writes.num_drops_queued for writes in self._writes.values())
        counts.num_pending.clear()
        counts.num_pending.update(pending)
        return counts

    def num_blocks(self) -> dict[str, int]:
        """Return how many blocks each tier has, by its name."""
        return {index.name: len(index) for index in self._indexes}

    def contents(self) -> dict[str, dict[BlockKey, BlockId]]:
        """Return what each tier has, by its name, and in which slot; for tests and people."""
        return {
            index.name: {key: slot for slot, key in index.keys.items()} for index in self._indexes
        }

    @property
    def _indexes(self) -> list[TierIndex]:
        return [self._tiers.host, *self._tiers.records.values()]

    @property
    def num_pinned(self) -> int:
        """How many device blocks, slots and records are pinned; each counts once."""
        return len(self._tiers.device) + sum(len(index.pins) for index in self._indexes)

    @property
    def held_blocks(self) -> list[BlockId]:
        """The device blocks that are held, each as often: for `CacheDebug.check_integrity`."""
        return self._tiers.device.blocks()

    def check_integrity(self) -> None:
        """Panic unless indexes, pins and jobs agree. The cache is checked by its owner."""
        tiers = self._tiers
        tiers.jobs.check_integrity()
        tiers.origins.check_integrity()
        device = [*self._stores.pinned(), *self._loads.pinned(""), *self._lookups.pinned("")]
        assert sorted(device) == tiers.device.blocks(), "a device block is held without a reason"
        name = tiers.host.name
        slots = [*self._stores.slots(), *self._promotions.slots(), *self._loads.pinned(name)]
        slots += self._lookups.pinned(name)
        for writes in self._writes.values():
            writes.check_integrity()
            slots += writes.slots()
        assert sorted(slots) == tiers.host.pins.blocks(), "a slot is pinned without a reason"
        for name, index in tiers.records.items():
            places = [*self._promotions.places(name), *self._lookups.pinned(name)]
            assert sorted(places) == index.pins.blocks(), f"a record of {name} is pinned"
        for index in self._indexes:
            index.check_integrity()
        had = set(chain.from_iterable(index.keys.values() for index in self._indexes))
        for key in tiers.origins:
            assert key in had or self._is_written(key), f"nobody has {key} any more"
