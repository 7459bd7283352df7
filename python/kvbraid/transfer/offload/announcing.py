"""Events of what tiers hold, in the order in which it happened.

Invariant: a store is announced when its copy can be read, a removal when it no longer can, and a
removal of one copy before the store of the next. A store says its tokens and what comes before
them if the request is known; otherwise it is a placeholder (`block_size` 0), whose hash alone says
where it stands. Blocks that follow each other in one tier and group are one event, and so are
placeholders in a row. What is taken at once is bounded: a start or a reset tells of all records.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.spec import SpecKind, Topology
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.index import TierIndex

TierEvent: TypeAlias = BlockStored | BlockRemoved
_HASH_BYTES: Final = 8
"""So many of a hash's last bytes are in events."""
_MAX_HASHES: Final = 8_192
"""So many hashes are taken at once: a fleet's index applies a longer batch in slices."""
_MAX_TOKENS: Final = 1 << 20
"""So many tokens: 5 MiB, where a feed accepts 32 MiB."""
_MAX_RUN: Final = 1_024
"""So many blocks are one event."""


class Content(NamedTuple):
    """What is known of a block for its event: the tokens in it, and the hash before them.

    `num_tokens` is how many tokens its hash covers, 0 if nobody knows. Without `token_ids` nothing
    else is known.
    """

    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    parent: bytes | None = None
    extra: ExtraKeys = NO_EXTRA_KEYS


UNKNOWN: Final = Content()


class TierBlock(NamedTuple):
    """A block that a tier has, in which of its slots, and what events say of it."""

    slot: BlockId
    key: BlockKey
    content: Content


class KnownRequests:
    """The tokens of the requests that were looked up last."""

    def __init__(self, topology: Topology, most: int) -> None:
        self._topology: Final = topology
        self._most: Final = most
        self._requests: Final[OrderedDict[int, tuple[Sequence[int], ExtraKeys]]] = OrderedDict()

    def know(self, request: int, tokens: Sequence[int], extra: ExtraKeys) -> None:
        """Remember a request; the one that was looked up longest ago is forgotten for it."""
        self._requests[request] = (tokens, extra)
        self._requests.move_to_end(request)
        if len(self._requests) > self._most:
            self._requests.popitem(last=False)

    def forget(self, request: int) -> None:
        """Forget a request that has ended."""
        self._requests.pop(request, None)

    def content(
        self, request: int, group: int, num_tokens: int, hash_at: Callable[[int], bytes]
    ) -> Content:
        """Return what is known of the block that ends after so many tokens of a request.

        Only whole blocks of attention are told with their tokens, and nothing that media or
        embeddings tell apart, because their keys are not repeated here. `hash_at` has the hash of
        the first tokens.
        """
        spec, known = self._topology.groups[group], self._requests.get(request)
        start = num_tokens - spec.block_size
        if known is None or spec.kind is SpecKind.MAMBA or num_tokens % spec.block_size:
            return Content(num_tokens)
        tokens, extra = known
        if num_tokens > len(tokens) or extra.media or extra.prompt_embeds:
            return Content(num_tokens)
        parent = hash_at(start) if start else None
        return Content(num_tokens, tuple(tokens[start:num_tokens]), parent, extra)


class Announcer:
    """The events that nobody has taken yet."""

    def __init__(self, topology: Topology, indexes: Sequence[TierIndex]) -> None:
        self._topology: Final = topology
        self._indexes: Final = indexes
        self._events: Final[deque[TierEvent]] = deque()
        self._run: list[TierBlock] = []  # What one event tells of.
        self._run_of: TierIndex = indexes[0]
        self._again: deque[tuple[TierIndex, BlockKey]] = deque()  # To tell again.

    def stored(self, index: TierIndex, blocks: Iterable[TierBlock]) -> None:
        """Announce copies that can be read from now on."""
        removals = _removals(index)
        if removals or index is not self._run_of:
            self._end_run()
            self._run_of = index
            self._events.extend(removals)
        for block in blocks:
            if not self._continues(block):
                self._end_run()
            self._run.append(block)

    def _continues(self, block: TierBlock) -> bool:
        """Whether a block can be told in one event with the run: both are placeholders, or it
        comes right after the run's last one."""
        num_blocks, content = len(self._run), block.content
        if not 0 < num_blocks < _MAX_RUN or num_blocks * len(content.token_ids) >= _MAX_TOKENS:
            return False
        _, last, before = self._run[-1]
        if block.key.group != last.group or bool(content.token_ids) != bool(before.token_ids):
            return False
        is_next = content.parent == last.block_hash and content.extra == before.extra
        return is_next or not content.token_ids

    def _end_run(self) -> None:
        if not self._run:
            return
        _, key, first = self._run[0]
        spec, extra, is_known = (
            self._topology.groups[key.group],
            first.extra,
            bool(first.token_ids),
        )
        event = BlockStored(
            block_hashes=tuple(_short(block.key.block_hash) for block in self._run),
            parent_block_hash=None if first.parent is None else _short(first.parent),
            token_ids=tuple(chain.from_iterable(each.content.token_ids for each in self._run)),
            block_size=spec.block_size if is_known else 0,
            medium=self._run_of.medium,
            lora_name=extra.lora.name if extra.lora else None,
            extra_keys=tuple(map(_extra_keys, self._run)) if is_known else None,
            group_idx=key.group,
            kv_cache_spec_kind=spec.kind.value,
            kv_cache_spec_sliding_window=spec.window if spec.kind.is_window else None,
        )
        self._events.append(event)
        self._run = []

    def tell_again(self) -> None:
        """Let all that tiers have be told again: a reset of the cache puts it in doubt."""
        self._again = deque(
            (index, key)
            for index in self._indexes
            for key in sorted(index.keys.values(), key=attrgetter("group"))
        )

    def _told_again(self) -> list[TierEvent]:
        """Return the removal of some doubtful copies, and the store of the same. What was told
        before this is all that there is."""
        (index, first), run = self._again[0], list[TierBlock]()
        while self._again and len(run) < _MAX_RUN:
            tier, key = self._again[0]
            if (tier, key.group) != (index, first.group):
                break
            self._again.popleft()
            if (slot := index.slot_of(key)) is not None:
                run.append(TierBlock(slot, key, UNKNOWN))
        if not run:
            return []
        self._run, self._run_of = run, index
        self._end_run()
        stored = self._events.pop()
        removed = BlockRemoved(
            block_hashes=stored.block_hashes, medium=index.medium, group_idx=first.group
        )
        return [removed, stored]

    @property
    def is_empty(self) -> bool:
        """Whether `take` has nothing to return."""
        is_told = not (self._events or self._run or self._again)
        return is_told and not any(index.has_removed for index in self._indexes)

    def take(self) -> list[TierEvent]:
        """Return the oldest events that were not taken yet, as many as are taken at once."""
        self._end_run()
        for index in self._indexes:
            self._events.extend(_removals(index))
        events, num_hashes, num_tokens = list[TierEvent](), 0, 0
        while self._events:
            event = self._events[0]
            num_hashes += len(event.block_hashes)
            num_tokens += len(event.token_ids) if isinstance(event, BlockStored) else 0
            if events and (num_hashes > _MAX_HASHES or num_tokens > _MAX_TOKENS):
                return events
            events.append(self._events.popleft())
        while self._again and num_hashes + 2 * _MAX_RUN <= _MAX_HASHES:
            told = self._told_again()
            num_hashes += sum(len(event.block_hashes) for event in told)
            events += told
        return events


def _removals(index: TierIndex) -> list[BlockRemoved]:
    """Return the events of what a tier has lost: one for some blocks of a group in a row."""
    events = []
    for group, keys in groupby(index.take_removed(), key=attrgetter("group")):
        hashes = (_short(key.block_hash) for key in keys)
        while part := tuple(islice(hashes, _MAX_RUN)):
            events.append(BlockRemoved(block_hashes=part, medium=index.medium, group_idx=group))
    return events


def _extra_keys(block: TierBlock) -> tuple[str, ...] | None:
    """What separates a block from others with its tokens: an adapter; a salt, in the first one."""
    extra, is_first = block.content.extra, block.content.parent is None
    keys = [extra.lora.name] if extra.lora else []
    keys += [extra.cache_salt] if extra.cache_salt and is_first else []
    return tuple(keys) or None


def _short(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-_HASH_BYTES:], "big")
