"""Real events for tests of the `weighted_blocks` strategy.

A block's hash is a digest of the prefix that ends with it, so groups of any block size agree on
it. To make a pod hold certain blocks, the feed stores whole prefixes and removes the other blocks.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence

from kvbraid.events.model import BlockRemoved, BlockStored, Event
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, Tier

from tests.reference.weighted_blocks import Group, GroupIndex

POD = PodId("pod")
WEIGHTS = {Tier.GPU: 1.0, Tier.CPU: 0.5, Tier.STORAGE: 0.25}
MEDIA = {Tier.GPU: "GPU", Tier.CPU: "CPU", Tier.STORAGE: "STORAGE"}


def tokens_of(count: int, *, start: int = 1) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def block_hash(prefix: Sequence[int]) -> int:
    digest = hashlib.blake2b(repr(tuple(prefix)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def store(
    prompt: Sequence[int],
    first: int,
    end: int,
    *,
    block_size: int = 16,
    group: GroupIndex = 0,
    known: Group = Group("full_attention"),  # noqa: B008 - a frozen constant
    tier: Tier = Tier.GPU,
    listed: Sequence[int] | None = None,
) -> BlockStored:
    """Store tokens `first` to `end`; `listed` are the ends of the blocks that have a hash."""
    ends = range(first + block_size, end + 1, block_size) if listed is None else listed
    return BlockStored(
        block_hashes=tuple(block_hash(prompt[:stop]) for stop in ends),
        parent_block_hash=block_hash(prompt[:first]) if first else None,
        token_ids=tuple(prompt[first:end]),
        block_size=block_size,
        medium=MEDIA[tier],
        group_idx=group,
        kv_cache_spec_kind=known.kind,
        kv_cache_spec_sliding_window=known.window,
    )


def remove(
    prompt: Sequence[int], end: int, *, group: GroupIndex = 0, tier: Tier = Tier.GPU
) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=(block_hash(prompt[:end]),), medium=MEDIA[tier], group_idx=group
    )


def holding(
    prompt: Sequence[int],
    held: Collection[int],
    *,
    block_size: int = 16,
    group: GroupIndex = 0,
    known: Group = Group("full_attention"),  # noqa: B008 - a frozen constant
    tier: Tier = Tier.GPU,
) -> Iterator[Event]:
    """Store the whole prompt in one group and tier; remove all blocks but those numbered."""
    end = len(prompt) // block_size * block_size
    yield store(prompt, 0, end, block_size=block_size, group=group, known=known, tier=tier)
    for block in range(end // block_size):
        if block not in held:
            yield remove(prompt, (block + 1) * block_size, group=group, tier=tier)


def new_index(*, canonical: int = 16) -> FleetIndex:
    options = IndexOptions(tier_weights=WEIGHTS, canonical_block_size=canonical)
    index = FleetIndex(options)
    index.register(POD, model="m")
    return index


def ask(index: FleetIndex, prompt: Sequence[int], *, pod: str = POD) -> PodScore:
    """Return the row of one pod."""
    request = Request(model="m", token_ids=prompt, pods=[pod], strategy="weighted_blocks")
    (row,) = index.score(request).rows
    return row


def score_after(events: Sequence[Event], prompt: Sequence[int], *, canonical: int = 16) -> float:
    """Feed one pod, event by event, and return its score."""
    index = new_index(canonical=canonical)
    for event in events:
        index.apply(POD, encode_batch([event]))
    index.check_integrity()
    row = ask(index, prompt)
    assert row.exactness != "unknown"
    return row.score
