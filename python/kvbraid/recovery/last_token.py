"""Where a request goes on whose whole prompt was loaded: its last token is computed anyway."""

from collections.abc import Collection

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.recovery.assess import first_read
from kvbraid.spec import SpecKind, Topology


def last_token_point(
    cache: CacheManager, request: int, num_tokens: int, *, bad: Collection[BlockId] = ()
) -> int:
    """Return how many tokens of a request need not be computed again. Changes nothing.

    That is `num_tokens - 1` if every group holds, token for token, what this position reads: it is
    no boundary, so no hash and no state of a block's end says that it can be resumed. Otherwise it
    is the largest boundary below that every group accepts. If it is less than `num_tokens - 1` and
    `cache.tables.rewind` refuses it, preempt the request and match again.

    Args:
        cache: The cache.
        request: The request; all of its tokens are loaded and committed, or were found.
        num_tokens: How many tokens it has.
        bad: Blocks that must not be used.

    Raises:
        UnknownError: The request is not known.
    """
    last = num_tokens - 1
    if _holds(cache.config.topology, cache.blocks(request), last, frozenset(bad)):
        return last
    (point,) = cache.tables.resume_points([request], sorted(bad), limits=[last], drops_unit=False)
    return point.num_tokens


def _holds(
    topology: Topology, tables: list[list[BlockId]], token: int, bad: frozenset[BlockId]
) -> bool:
    for spec, table in zip(topology.groups, tables, strict=True):
        first = first_read(spec, token)
        if spec.kind is SpecKind.MAMBA:
            return False
        if first < token:
            end = -(-token // spec.block_size)
            held = table[first // spec.block_size : end]
            if len(table) < end or 0 in held or not bad.isdisjoint(held):
                return False
    return True
