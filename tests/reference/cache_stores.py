"""The store events of a commit, from the request's tokens and the blocks that are kept.

A store spans the tokens of all blocks that a commit passed over, but lists the kept ones only.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kvbraid.events.model import BlockStored, ExtraKey
from kvbraid.hashing import ExtraKeys

from tests.reference.cache_groups import Group
from tests.reference.cache_pool import wire_hash


class Stored(Protocol):
    """What a store tells of a request."""

    tokens: list[int]
    hashes: list[bytes]
    extra: ExtraKeys
    lora_id: int | None


def store(
    request: Stored, group: Group, hash_block: int, span: range, kept: Sequence[int]
) -> BlockStored:
    """Blocks of `span` were passed over, those of `kept` can be found from now on."""
    size = group.spec.block_size
    return _stored(
        request,
        group,
        hash_block,
        (span.start * size, span.stop * size, size),
        [((j + 1) * size, _extra_keys(request, j * size, (j + 1) * size)) for j in kept],
    )


def partial_store(request: Stored, group: Group, hash_block: int, end: int) -> BlockStored:
    """A block can be found where a prefix ends inside it; the last hash block is said."""
    start = end - hash_block
    listed = [(end, _extra_keys(request, start, end))]
    return _stored(request, group, hash_block, (start, end, hash_block), listed)


def _stored(
    request: Stored,
    group: Group,
    hash_block: int,
    span: tuple[int, int, int],
    listed: Sequence[tuple[int, tuple[ExtraKey, ...] | None]],
) -> BlockStored:
    def hash_at(end: int) -> int:
        return wire_hash(request.hashes[end // hash_block - 1])

    start, end, size = span
    lora = request.extra.lora
    return BlockStored(
        block_hashes=tuple(hash_at(end) for end, _ in listed),
        parent_block_hash=hash_at(start) if start else None,
        token_ids=tuple(request.tokens[start:end]),
        block_size=size,
        lora_id=request.lora_id if lora is not None else None,
        lora_name=None if lora is None else lora.name,
        extra_keys=tuple(keys for _, keys in listed) or None,
        group_idx=group.index,
        kv_cache_spec_kind=group.spec.kind.value,
        kv_cache_spec_sliding_window=group.spec.window if group.spec.kind.is_window else None,
    )


def _extra_keys(request: Stored, start: int, end: int) -> tuple[ExtraKey, ...] | None:
    return tuple(_each_extra_key(request.extra, start, end)) or None


def _each_extra_key(extra: ExtraKeys, start: int, end: int) -> Iterator[ExtraKey]:
    for item in extra.media:
        if item.offset < end and item.offset + item.length > start:
            yield (item.identifier, item.offset - start)
    if start == 0 and extra.cache_salt:
        yield extra.cache_salt
