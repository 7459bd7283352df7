"""What requests hold in their own tables, read entry by entry through the public calls of a cache.

No entry is skipped, nothing is searched: the rule's brute force gets every boundary at which a
table has something that is not bad.
"""

from collections.abc import Collection
from dataclasses import replace

from kvbraid.cache import CacheManager, TableEntry
from kvbraid.ids import BlockId
from kvbraid.spec import SpecKind, Topology

from tests.reference import resume


def places(cache: CacheManager, requests: Collection[int], block_id: BlockId) -> list[TableEntry]:
    """Every entry of every table that is this block."""
    return [
        TableEntry(request, group, position)
        for request in sorted(requests)
        for group, table in enumerate(cache.blocks(request))
        for position, block in enumerate(table)
        if block == block_id != 0
    ]


def entries(
    cache: CacheManager, request: int, bad: Collection[BlockId], end: int
) -> list[set[int]]:
    """By group, where something that is held and not bad ends, within the first `end` tokens."""
    topology, held = cache.config.topology, []
    for group, table in enumerate(cache.blocks(request)):
        spec, ends = topology.groups[group], set[int]()
        for position, block in enumerate(table):
            if block and block not in bad:
                start = position * spec.block_size
                ends |= (
                    state_end(cache, request, group, position)
                    if spec.kind is SpecKind.MAMBA
                    else set(range(start + 1, start + spec.block_size + 1))
                )
        unit = resume.hash_block(topology) if topology.partial_hits else spec.block_size
        held.append({n for n in ends if n <= end and n % unit == 0})
    return held


def state_end(cache: CacheManager, request: int, group: int, position: int) -> set[int]:
    """The tokens that a state covers, if that is known."""
    block = cache.blocks(request)[group][position]
    size = cache.config.topology.groups[group].block_size
    (info,) = cache.pool.describe([block])
    if info.group == group:
        return {info.num_tokens}
    running = -(-cache.num_computed_tokens(request) // size) - 1
    is_last = position in {running, cache.debug.cursors(request)[group].last_state}
    return {(position + 1) * size} if is_last else set()


def without_draft_heads(topology: Topology) -> Topology:
    return replace(topology, groups=tuple(replace(g, eagle=False) for g in topology.groups))
