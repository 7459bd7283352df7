"""Blocks on their way from the device into host slots.

    findable -> waits for its step -> copied -> announced
       |              |                  |
       no room        no longer found    failed, or garbage        counted, and as if never begun

Invariant: a device block is held from the step in which it became findable until no rank reads it
any more. A slot is findable only after every rank has copied the block.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

from kvbraid.cache import Findable, KeptState
from kvbraid.errors import UnknownError
from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey, block_keys
from kvbraid.transfer.offload.announcing import Content, TierBlock
from kvbraid.transfer.offload.counts import Drop
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.status import Status

_HashAt: TypeAlias = Callable[[int], bytes]
"""The hash of the first tokens of a request."""

_NO_SLOT: Final = BlockId(0)
_GROUP: Final = attrgetter("group")
_HASH: Final = attrgetter("block_hash")


@dataclass(slots=True, eq=False)
class _Store:
    key: BlockKey
    block: BlockId
    step: int
    content: Content
    slot: BlockId = _NO_SLOT
    is_cancelled: bool = False


class Stores:
    """The device blocks that are stored, or will be.

    `on_stored` is told of blocks that became findable, and that host memory has.
    """

    def __init__(self, tiers: TierState, on_stored: Callable[[Sequence[TierBlock]], None]) -> None:
        self._tiers: Final = tiers
        self._on_stored: Final = on_stored
        half = max(1, tiers.cache.config.num_blocks // 2)
        self._most: Final = min(tiers.options.max_pending_stores, half)
        self._stores: Final[dict[BlockKey, _Store]] = {}  # Each either waits or is copied.
        self._copied: Final[dict[int, list[_Store]]] = {}  # By job.
        self._last_ended = -1

    @property
    def num_waiting(self) -> int:
        """Blocks that no job copies yet."""
        return sum(not store.slot for store in self._stores.values())

    # What is stored.

    def take_findable(self, step: int, states: Sequence[KeptState]) -> None:
        """Hold what became findable, and what keeps states, until the step has run."""
        tiers = self._tiers
        listed = [*tiers.cache.tiers.take_findable(), *self._found(states)]
        keys = block_keys(map(_HASH, listed), map(_GROUP, listed))
        missing = tiers.host.lacks(keys)
        unwritten = set[BlockKey]().union(*(i.lacks(keys) for i in tiers.records.values()))
        unwritten -= missing
        new = _pairs(keys, listed, missing)
        lacked = _pairs(keys, listed, unwritten)
        hashes = self._hashes([each for _, each in (*new, *lacked)])
        self._add(new, step, hashes)
        self._on_stored(
            [
                TierBlock(tiers.host.slot_of(key) or _NO_SLOT, key, self._content(each, hashes))
                for key, each in lacked
            ]
        )
        tiers.host.touch([key for key in keys if key not in missing] if missing else keys)

    def _found(self, states: Sequence[KeptState]) -> Iterator[Findable]:
        """Yield states with the hashes that find them. Some may have left since they were told."""
        infos = self._tiers.cache.pool.describe([state.block_id for state in states])
        for (request, group, block, num_tokens), info in zip(states, infos, strict=True):
            if info.block_hash and (info.group, info.num_tokens) == (group, num_tokens):
                yield Findable(group, block, info.block_hash, num_tokens, request)
            else:
                self._tiers.drop(self._tiers.host.name, Drop.NOT_FOUND)

    def _hashes(self, blocks: Iterable[Findable]) -> dict[int, _HashAt]:
        """Return the hashes of each request, from the one before its first block on."""
        sizes = [group.block_size for group in self._tiers.topology.groups]
        starts: dict[int, int] = {}
        for each in blocks:
            start, request = each.num_tokens - sizes[each.group], each.request
            if start < starts.get(request, start + 1):
                starts[request] = start
        return {request: self._hashes_from(request, start) for request, start in starts.items()}

    def _hashes_from(self, request: int, num_tokens: int) -> _HashAt:
        start = max(num_tokens // self._tiers.unit - 1, 0)
        try:
            hashes = self._tiers.cache.tiers.block_hashes(request, start)
        except UnknownError:  # It has ended: its blocks are told as placeholders.
            self._tiers.requests.forget(request)
            hashes = []
        return lambda num_tokens: hashes[num_tokens // self._tiers.unit - 1 - start]

    def _content(self, each: Findable, hashes: Mapping[int, _HashAt]) -> Content:
        hash_at, requests = hashes[each.request], self._tiers.requests
        return requests.content(each.request, each.group, each.num_tokens, hash_at)

    def _add(
        self,
        new: Iterable[tuple[BlockKey, Findable]],
        step: int,
        hashes: Mapping[int, _HashAt],
    ) -> None:
        """Let blocks wait, as many as may, and hold them."""
        blocks = []
        for key, each in new:
            if key in self._stores:
                continue
            if len(self._stores) >= self._most:
                self._tiers.drop(self._tiers.host.name, Drop.STORES_FULL)
                continue
            content = self._content(each, hashes)
            self._stores[key] = _Store(key, each.block_id, step, content)
            blocks.append(each.block_id)
        self._tiers.device.hold(*blocks)

    def step_ended(self, step: int) -> None:
        """Let blocks be copied that this step, or one before it, has written."""
        self._last_ended = max(step, self._last_ended)

    def take_jobs(self) -> Iterator[Job]:
        """Yield the copies that can begin."""
        tiers, ready = self._tiers, list[_Store]()
        for store in list(self._stores.values()):
            if store.slot or store.step > self._last_ended:
                continue
            if not self._is_found(store):
                self._leave(store, Drop.NOT_FOUND)
            elif store.key in tiers.host:  # Read from a tier in the meantime.
                self._leave(store)
            else:
                ready.append(store)
        slots = tiers.take_slots(len(ready))
        for store in ready[len(slots) :]:
            self._leave(store, Drop.NO_SLOT)
        del ready[len(slots) :]
        for store, slot in zip(ready, slots, strict=True):
            store.slot = slot
        items = [Item(store.key.group, store.block, store.slot) for store in ready]
        for job in tiers.chunked(Kind.STORE, items, self):
            self._copied[job.number] = ready[: len(job.items)]
            del ready[: len(job.items)]
            yield job

    def _is_found(self, store: _Store) -> bool:
        key = store.key
        return store.block in self._tiers.cache.pool.holders(key.group, key.block_hash)

    def _leave(self, store: _Store, why: Drop | None = None) -> None:
        del self._stores[store.key]
        self._tiers.device.free(store.block)
        if why is not None:
            self._tiers.drop(self._tiers.host.name, why)

    # What becomes of it.

    def answered(self, job: Job, rank: int, statuses: Sequence[Status], *, is_over: bool) -> None:
        """Nothing: a block counts once every rank has answered."""

    def settled(self, job: Job, statuses: Sequence[Status]) -> None:
        """Announce what every rank has copied."""
        stored = []
        for store, status in zip(self._copied[job.number], statuses, strict=True):
            if store.is_cancelled:
                continue
            del self._stores[store.key]
            if status is not Status.OK:
                self._tiers.drop(self._tiers.host.name, Drop.FAILED)
            elif store.key not in self._tiers.host:
                stored.append(TierBlock(store.slot, store.key, store.content))
                self._tiers.origins.note(store.key, store.block)
        self._tiers.announce(self._tiers.host, stored)
        self._on_stored(stored)

    def over(self, job: Job) -> None:
        """Free the blocks and the slots of a job."""
        stores = self._copied.pop(job.number)[::-1]
        self._tiers.host.pins.free(*[store.slot for store in stores])
        self._tiers.device.free(*[store.block for store in stores])

    def cancel(self, blocks: Collection[BlockId]) -> None:
        """Store nothing of these blocks."""
        self._cancel([store for store in self._stores.values() if store.block in blocks])

    def close(self, why: Drop = Drop.RETRACTED) -> None:
        """Store nothing that waits; what is being copied is held until it is over."""
        self._cancel(list(self._stores.values()), why)

    def _cancel(self, stores: Sequence[_Store], why: Drop = Drop.RETRACTED) -> None:
        for store in stores:
            self._tiers.drop(self._tiers.host.name, why)
            if store.slot:
                store.is_cancelled = True
                del self._stores[store.key]
            else:
                self._leave(store)

    def pinned(self) -> list[BlockId]:
        """Return the device blocks that are held, each as often as it is."""
        waiting = [store.block for store in self._stores.values() if not store.slot]
        return waiting + [store.block for stores in self._copied.values() for store in stores]

    def slots(self) -> list[BlockId]:
        """Return the host slots that are written."""
        return [store.slot for stores in self._copied.values() for store in stores]


def _pairs(
    keys: Sequence[BlockKey], found: Sequence[Findable], among: Set[BlockKey]
) -> list[tuple[BlockKey, Findable]]:
    """Return what was found of these keys; most often there are none of them."""
    return [pair for pair in zip(keys, found, strict=True) if pair[0] in among] if among else []
