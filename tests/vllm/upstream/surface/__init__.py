"""What vLLM's own tests reach for beyond what its scheduler uses, over our cache.

A pool that stands alone, blocks that tests make by hand, the map of hashes and the free queue as
objects, one group's manager. The names are vLLM's, so that the tests find them. Nothing here keeps
blocks, hashes or references of its own: each answer is read from the native cache, and each change
is made there.
"""

from .engine import KVCacheManager, TrackedManager
from .groups import (
    ChunkedLocalAttentionManager,
    CircularBufferManager,
    FullAttentionManager,
    MambaManager,
    RSWAManager,
    SlidingWindowManager,
)
from .made_by_hand import BlockHashToBlockMap, KVCacheBlock
from .pool import BlockPool

__all__ = [
    "BlockHashToBlockMap",
    "BlockPool",
    "ChunkedLocalAttentionManager",
    "CircularBufferManager",
    "FullAttentionManager",
    "KVCacheBlock",
    "KVCacheManager",
    "MambaManager",
    "RSWAManager",
    "SlidingWindowManager",
    "TrackedManager",
]
