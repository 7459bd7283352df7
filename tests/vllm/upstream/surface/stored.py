"""A `BlockStored` event for what is registered through a pool.

The manager says which group it is and of which kind; a pool does not know.
"""

from collections.abc import Sequence
from typing import TypeAlias

from vllm.distributed.kv_events import MEDIUM_GPU, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.request import Request

Part: TypeAlias = tuple[int, int]
"""First token, and the one after the last."""


def stored(
    request: Request, parts: Sequence[Part], whole: Part, sizes: tuple[int, int, int]
) -> BlockStored:
    """Return the event.

    Args:
        request: Whose tokens they are.
        parts: One for each block that is named.
        whole: What lies between the parent and the last block.
        sizes: The group, tokens per block, tokens per hash.
    """
    group, block_size, unit = sizes
    start, end = whole
    digests = [request.block_hashes[part_end // unit - 1] for _, part_end in parts]
    extra_keys = [
        generate_block_hash_extra_keys(request, part_start, part_end, 0)[0]
        for part_start, part_end in parts
    ]
    lora = request.lora_request
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(digest) for digest in digests],
        parent_block_hash=(
            maybe_convert_block_hash(request.block_hashes[start // unit - 1]) if start else None
        ),
        token_ids=request.all_token_ids[start:end],
        block_size=block_size,
        lora_id=lora.adapter_id if lora else None,
        medium=MEDIUM_GPU,
        lora_name=lora.name if lora else None,
        extra_keys=to_event_extra_keys(extra_keys),
        group_idx=group,
        session_id=request.session_id,
    )
