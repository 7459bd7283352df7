"""Objects that tests make by hand, without a pool: they have a small pool of their own.

When another pool takes over a block, the block keeps its number as a name and its hash, and
belongs to that pool from then on.
"""

from typing import Final

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache.blocks import NULL_BLOCK_ID

from .blocks import PoolBlock
from .hash_map import HashMap
from .pool import BlockPool

_BLOCKS_OF_A_MAP: Final = 64


class KVCacheBlock(PoolBlock):
    """A block that belongs to no engine yet."""

    __slots__ = ()

    def __init__(self, block_id: int, is_null: bool = False) -> None:
        own_pool = BlockPool(num_gpu_blocks=2, enable_caching=True, hash_block_size=1)
        number = NULL_BLOCK_ID if is_null else NULL_BLOCK_ID + 1
        super().__init__(own_pool, BlockId(number), BlockId(block_id))


class BlockHashToBlockMap(HashMap):
    """A map of blocks that belong to no engine."""

    def __init__(self) -> None:
        super().__init__(
            BlockPool(num_gpu_blocks=_BLOCKS_OF_A_MAP, enable_caching=True, hash_block_size=1)
        )
