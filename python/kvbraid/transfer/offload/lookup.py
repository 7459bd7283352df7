"""What a request can load, from where, and what is pinned until its load begins.

Invariant: an offer's blocks and slots are pinned until its load begins or the schedule ends. A
look-up that may wait reads records first and asks to be asked again, until each is in host memory
or could not be read, the pool has all of it, or its deadline has passed. Only then it looks again,
and offers what is there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

from kvbraid.cache import Match, TierMatch
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads import Record
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import UNKNOWN, Content
from kvbraid.transfer.offload.index import Pins, TierIndex
from kvbraid.transfer.offload.promoting import Promotions
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.status import Status

_IN_HOST: Final = 1
"""The number of host memory among the sources of a `TierMatch`; tiers of records come after it."""


class Again(Enum):
    """What a look-up answers while records are being read."""

    ASK_AGAIN = auto()


class LoadSource(NamedTuple):
    """Where a position of the load comes from.

    Attributes:
        group: The group.
        position: The position in the request's table.
        tier: The tier's name; "" for a block of the cache's own pool.
        block_id: The block, or the slot of the tier's index.
        key: What the block is called.
        content: What events say of it.
    """

    group: int
    position: int
    tier: str
    block_id: BlockId
    key: BlockKey
    content: Content


_as_source: Final = partial(tuple.__new__, LoadSource)  # A third of the time of a call.


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a request can load; lengths are in tokens.

    Attributes:
        request: The request.
        match: What it adopts before the load: `TierMatch.match`.
        num_pool_tokens: What the cache alone has.
        num_tokens: What it has once the load has ended.
        tier: The slowest tier that is read.
        sources: Where each position of the load is.
        read_from: The tiers of the records that were read for it before, by key.
    """

    request: int
    match: Match
    num_pool_tokens: int
    num_tokens: int
    tier: str
    sources: tuple[LoadSource, ...]
    read_from: Mapping[BlockKey, str] = field(default_factory=dict)

    @property
    def num_external_tokens(self) -> int:
        """What the load brings."""
        return self.num_tokens - self.match.num_tokens

    def tier_of(self, source: LoadSource) -> str:
        """Return the tier that a source has come from, also if that was before the load."""
        return source.tier and self.read_from.get(source.key, source.tier)

    @property
    def records(self) -> tuple[Record, ...]:
        """What is read."""
        read = (source for source in self.sources if source.tier)
        return tuple(Record(source.tier, source.key.to_bytes()) for source in read)


@dataclass(slots=True, eq=False)
class _Wait:
    """The records that one request waits for, the tiers and the slots of those that have come.

    `num_tokens` is what it can reuse with them.
    """

    deadline: float
    num_tokens: int = 0
    missing: dict[BlockKey, str] = field(default_factory=dict)
    read_from: dict[BlockKey, str] = field(default_factory=dict)
    slots: list[BlockId] = field(default_factory=list)

    def promoted(self, key: BlockKey, slot: BlockId) -> None:
        """Keep the slot until the next look-up."""
        self.read_from[key] = self.missing.pop(key)
        self.slots.append(slot)

    def not_promoted(self, key: BlockKey, tier: str, status: Status) -> None:
        """Go without it."""
        del tier, status
        self.missing.pop(key, None)


class LookUps:
    """The requests that were looked up and have not begun a load."""

    def __init__(self, tiers: TierState, promotions: Promotions) -> None:
        self._tiers: Final = tiers
        self._promotions: Final = promotions
        self._waits: Final[dict[int, _Wait]] = {}
        self._offers: Final[dict[int, Found]] = {}
        self._declined: set[int] = set()

    def lookup(
        self,
        request: int,
        tokens: Sequence[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
        refused: Collection[str] = (),
        *,
        may_wait: bool,
        whole_blocks: bool = False,
    ) -> Found | Again | None:
        """Return what a request can load; None for nothing. See `OffloadManager.lookup`."""
        if tokens:
            self._tiers.requests.know(request, tokens, extra)
        self._withdraw(request)
        if request in self._declined:
            self._declined.remove(request)
            return self._offer_at_once(request, refused, whole_blocks=whole_blocks)
        wait = self._waits.get(request) or _Wait(self._deadline())
        is_late = self._tiers.clock() >= wait.deadline
        if may_wait and wait.missing and not is_late and not self._is_in_pool(request, wait):
            return Again.ASK_AGAIN
        self._waits.pop(request, None)
        match, indexes = self.match_over(request, refused, whole_blocks=whole_blocks)
        reads = may_wait and max(match.sources, default=0) > _IN_HOST
        if reads and not is_late and self._want(request, match, indexes, wait):
            self._waits[request] = wait
            wait.num_tokens = match.num_tokens
            return Again.ASK_AGAIN
        if reads:
            self._tiers.counts.num_deadlines += is_late
            match, indexes = self._match_host(request, refused, whole_blocks=whole_blocks)
        found = self._found(request, match, indexes)
        if found:
            found = replace(found, read_from=wait.read_from)
            self._offer(found)
        self._leave(wait)
        return found

    def _is_in_pool(self, request: int, wait: _Wait) -> bool:
        """Whether the pool alone has by now what a request waits for."""
        return self._tiers.cache.tiers.match_over(request, ()).num_tokens >= wait.num_tokens

    def _offer_at_once(
        self, request: int, refused: Collection[str], *, whole_blocks: bool
    ) -> Found | None:
        """Offer what host memory alone has of a load that did not fit into the pool, perhaps for
        what it had pinned there. Who gets nothing may compute, so nobody waits for ever."""
        host = self._tiers.host
        match, indexes = self._match_host(request, refused, whole_blocks=whole_blocks)
        found = self._found(request, match, indexes)
        if found is None:
            return None
        sources = []
        for source in found.sources:
            if (slot := host.slot_of(source.key)) is None:
                return None
            sources.append(source._replace(tier=host.name, block_id=slot))
        found = replace(found, sources=tuple(sources))
        self._offer(found)
        return found

    def _deadline(self) -> float:
        return self._tiers.clock() + self._tiers.options.promote_deadline

    def _match_host(
        self, request: int, refused: Collection[str], *, whole_blocks: bool
    ) -> tuple[TierMatch, Sequence[TierIndex]]:
        left_out = [*refused, *self._tiers.records]
        return self.match_over(request, left_out, whole_blocks=whole_blocks)

    def match_over(
        self, request: int, refused: Collection[str], *, whole_blocks: bool = False
    ) -> tuple[TierMatch, Sequence[TierIndex]]:
        """Return what a request can reuse, and the indexes that were asked."""
        tiers = self._tiers
        left_out = {*refused, *tiers.read_rest.cooling(tiers.clock())}
        below = [index for name, index in tiers.records.items() if name not in left_out]
        # Whatever is loaded comes through host memory.
        indexes = [] if tiers.host.name in left_out else [tiers.host, *below]
        pools = [index.pool for index in indexes]
        match = tiers.cache.tiers.match_over(request, pools, whole_blocks=whole_blocks)
        return match, indexes

    def _found(self, request: int, match: TierMatch, indexes: Sequence[TierIndex]) -> Found | None:
        """Return what a request can load; None for nothing."""
        if not (indexes and match.sources):  # An engine may find less than the rule in its pool.
            return None
        return Found(
            request=request,
            match=match.match,
            num_pool_tokens=match.num_pool_tokens,
            num_tokens=match.num_tokens,
            tier=indexes[max(*match.sources, _IN_HOST) - _IN_HOST].name,
            sources=tuple(self._sources(request, match, indexes, nearest=0)),
        )

    def _sources(
        self, request: int, found: TierMatch, indexes: Sequence[TierIndex], *, nearest: int
    ) -> list[LoadSource]:
        """Return where the positions of a load are that `nearest` or tiers below it have."""
        contents = self._contents(request, found)
        columns = (found.groups, found.positions, found.sources, found.block_ids)
        fills = zip(*[column.tolist() for column in columns], strict=True)
        far = [fill for fill in fills if fill[2] >= nearest]
        held = [BlockId(block) for _, _, number, block in far if not number]
        infos = iter(self._tiers.cache.pool.describe(held))
        names = ["", *(each.name for each in indexes)]
        keys = [{}, *(each.keys for each in indexes)]
        sources = []
        for group, position, number, slot in far:
            block = BlockId(slot)
            key = keys[number][block] if number else BlockKey(next(infos).block_hash or b"", group)
            content = contents(group, position, key) if number > _IN_HOST else UNKNOWN
            sources.append((group, position, names[number], block, key, content))
        return [*map(_as_source, sources)]

    def _contents(self, request: int, found: TierMatch) -> Callable[[int, int, BlockKey], Content]:
        """What events say of records that are read for a request."""
        tiers = self._tiers
        is_near = max(found.sources, default=0) <= _IN_HOST
        hashes = [] if is_near else tiers.cache.tiers.block_hashes(request)

        def content(group: int, position: int, key: BlockKey) -> Content:
            num_tokens = (position + 1) * tiers.topology.groups[group].block_size
            at = num_tokens // tiers.unit - 1
            if at >= len(hashes) or hashes[at] != key.block_hash:
                return UNKNOWN  # A state, or a block that a hash finds inside.
            return tiers.requests.content(
                request, group, num_tokens, lambda tokens: hashes[tokens // tiers.unit - 1]
            )

        return content

    def _want(
        self, request: int, match: TierMatch, indexes: Sequence[TierIndex], wait: _Wait
    ) -> bool:
        """Have the records read that an offer needs; return whether any is still to come."""
        sources = self._sources(request, match, indexes, nearest=_IN_HOST + 1)
        new = [source for source in sources if source.key not in wait.missing]
        wait.missing.update((source.key, source.tier) for source in new)
        self._promotions.want([(each.key, each.tier, each.content) for each in new], wait)
        return bool(wait.missing)

    def _leave(self, wait: _Wait) -> None:
        self._promotions.leave(wait)
        self._tiers.host.pins.free(*wait.slots)
        wait.slots = []

    # Offers.

    def _offer(self, found: Found) -> None:
        """Pin what a request can load."""
        self._offers[found.request] = found
        for tier, blocks in _by_tier(found.sources).items():
            self._pins(tier).hold(*blocks)

    def _pins(self, tier: str) -> Pins:
        if not tier:
            return self._tiers.device
        return (self._tiers.records.get(tier) or self._tiers.host).pins

    def _withdraw(self, request: int) -> None:
        found = self._offers.pop(request, None)
        if found is not None:
            self.free(found.sources)

    def free(self, sources: Iterable[LoadSource]) -> None:
        """Drop what an offer has pinned."""
        for tier, blocks in _by_tier(sources).items():
            self._pins(tier).free(*blocks)

    def take(self, request: int) -> Found | None:
        """Take a request's offer, whose load begins; drop its pins with `free`."""
        return self._offers.pop(request, None)

    def end_schedule(self) -> None:
        """Withdraw the offers that no load has taken."""
        offers = list(self._offers.items())
        self._tiers.counts.num_declined += len(offers)
        copying = {request for request, found in offers if not all(s.tier for s in found.sources)}
        self._declined = copying or self._declined
        for request, _ in offers:
            self._withdraw(request)

    def forget(self, request: int) -> None:
        """Forget a request that has ended."""
        self._withdraw(request)
        self._declined.discard(request)
        wait = self._waits.pop(request, None)
        if wait is not None:
            self._leave(wait)

    def close(self) -> None:
        """Forget all requests."""
        for request in [*self._offers, *self._waits]:
            self.forget(request)

    def pinned(self, tier: str) -> list[BlockId]:
        """Return the blocks or slots of a tier that are pinned for requests, each as often."""
        offered = [s.block_id for f in self._offers.values() for s in f.sources if s.tier == tier]
        if tier != self._tiers.host.name:
            return offered
        return offered + [slot for wait in self._waits.values() for slot in wait.slots]


def _by_tier(sources: Iterable[LoadSource]) -> dict[str, list[BlockId]]:
    blocks: dict[str, list[BlockId]] = {}
    for source in sources:
        blocks.setdefault(source.tier, []).append(source.block_id)
    return blocks
