"""Events of what tiers hold, in the order in which it happened.

Invariant: a store is announced when its copy can be read, a removal when it no longer can, and a
removal of one copy before the store of the next. A store says its tokens and what comes before
them if the request is known; otherwise it is a placeholder (`block_size` 0), whose hash alone says
where it stands. Blocks that follow each other in one tier and group are one event.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
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
        self._events: list[TierEvent] = []
        self._run: list[TierBlock] = []  # What one event tells of.
        self._run_of: TierIndex = indexes[0]

    def stored(self, index: TierIndex, blocks: Iterable[TierBlock]) -> None:
        """Announce copies that can be read from now on."""
        removals = _removals(index)
        if removals or index is not self._run_of:
            self._end_run()
            self._run_of = index
            self._events += removals
        for block in blocks:
            if not self._continues(block):
                self._end_run()
            self._run.append(block)

    def _continues(self, block: TierBlock) -> bool:
        """Whether a block comes right after the last one of the run."""
        if not self._run or not block.content.token_ids:
            return False
        _, last, before = self._run[-1]
        is_next = block.key.group == last.group and block.content.parent == last.block_hash
        return is_next and block.content.extra == before.extra

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

    @property
    def is_empty(self) -> bool:
        """Whether nothing was announced since the last call of `take`."""
        return not (self._events or self._run)

    def take(self) -> list[TierEvent]:
        """Return the events since the last call."""
        self._end_run()
        for index in self._indexes:
            self._events += _removals(index)
        events, self._events = self._events, []
        return events


def _removals(index: TierIndex) -> list[BlockRemoved]:
    """Return the events of what a tier has lost: one for blocks of a group in a row."""
    runs = groupby(index.take_removed(), key=attrgetter("group"))
    return [
        BlockRemoved(
            block_hashes=tuple(_short(key.block_hash) for key in keys),
            medium=index.medium,
            group_idx=group,
        )
        for group, keys in runs
    ]


def _extra_keys(block: TierBlock) -> tuple[str, ...] | None:
    """What separates a block from others with its tokens: an adapter; a salt, in the first one."""
    extra, is_first = block.content.extra, block.content.parent is None
    keys = [extra.lora.name] if extra.lora else []
    keys += [extra.cache_salt] if extra.cache_salt and is_first else []
    return tuple(keys) or None


def _short(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-_HASH_BYTES:], "big")
