"""The blocks of sink attention, which no request may get.

A layer with static sinks writes their keys and values once, into blocks 1 to n of its own cache,
and every request reads them ahead of its own blocks (vLLM 0.32, `static_sink_attention.py`). They
belong to no request and no prefix. vLLM's own manager does not keep them apart, and cannot even be
built for such a group, so there is nothing to be compared with.
"""

from collections.abc import Sequence

from vllm.v1.kv_cache_interface import KVCacheConfig, SinkFullAttentionSpec

from kvbraid.cache import CacheManager
from kvbraid.errors import UnsupportedError
from kvbraid.ids import BlockId


def sink_blocks(config: KVCacheConfig) -> list[BlockId]:
    """Return the blocks that the layers of all groups write their sinks into.

    Raises:
        UnsupportedError: Sinks that do not fill whole blocks, or leave no block to requests.
    """
    num_blocks = 0
    for index, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        if isinstance(spec, SinkFullAttentionSpec):
            length = spec.sink_len or 0
            if length < 1 or length % spec.block_size:
                raise UnsupportedError(
                    f"KV cache group {index} (SinkFullAttentionSpec) has {length} sink tokens; "
                    f"they fill whole blocks of {spec.block_size}: pass another --block-size"
                )
            num_blocks = max(num_blocks, length // spec.block_size)
    if num_blocks + 1 >= config.num_blocks and num_blocks:
        raise UnsupportedError(
            f"sinks take {num_blocks} of {config.num_blocks} blocks, and the null block one: none "
            "is left to requests; give the cache more memory"
        )
    return [BlockId(number) for number in range(1, num_blocks + 1)]


def reset_beside(cache: CacheManager, held: Sequence[BlockId]) -> bool:
    """Drop the hashes of all blocks unless a request has blocks; return whether it was done.

    The cache takes a held block for one in use, so sinks, and what a connector holds while it
    copies, are let go meanwhile.
    """
    cache.pool.free(held)
    try:
        return cache.reset()
    finally:
        cache.pool.hold(held)
