"""The groups with which failed loads are tested: two to six of them, and one that was promoted.

A load brings of a narrow window and of a state only what its end needs, so nothing below is left
if any of it fails. Where windows are wider than prompts, a request can go back in place.
"""

from dataclasses import replace
from typing import Any, Final

from tests.vllm.drop_in_pair import SIZES, chunked, full, states, window
from tests.vllm.recovery.rebuilt_engine import Mix

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

WIDE: Final = 500
NUM_BLOCKS: Final = 3_000


def latent(block_size: int, **more: Any) -> Any:  # noqa: ANN401 - vLLM's own type.
    return MLAAttentionSpec(block_size=block_size, **SIZES, **more)


def mix(*groups: Any, alignment: int = 4, **more: Any) -> Mix:  # noqa: ANN401 - vLLM's own types.
    return Mix(groups, NUM_BLOCKS, alignment, 4, **more)


MIXES: Final = {
    # With the hybrid manager off, the engine makes windows full and keeps their size.
    "a promoted group": mix(full(4, sliding_window=10)),
    "full and window": mix(full(4), window(10, 4)),
    "full and a wide window": mix(full(4), window(WIDE, 4)),
    "a window that starts with a block": mix(full(4), window(9, 4)),
    "unequal blocks": mix(window(15, 8), full(4), alignment=8),
    "unequal blocks and a wide window": mix(window(WIDE, 8), full(4), alignment=8),
    "two latent groups": mix(latent(4), latent(8), alignment=8),
    "no full group": mix(window(10, 4), window(20, 4)),
    "no full group, wide windows": mix(window(WIDE, 4), window(WIDE + 9, 4)),
    "a draft head": mix(full(4), window(WIDE, 4), eagle=frozenset({0})),
    "states and full": mix(states(4), full(4)),
    "states inside blocks": mix(states(16), full(16), alignment=16),
    "partial hits": mix(states(16), full(16), alignment=16, loads_whole_blocks=False),
    "full, latent and chunks": mix(full(4), latent(4), chunked(128, 4), retention=None),
    "windows and states": mix(window(10, 4), states(4), window(20, 4)),
    "four": mix(full(4), window(10, 4), window(WIDE, 4), states(4)),
    "five": mix(*(full(4), full(8), window(WIDE, 4), window(WIDE + 9, 8), latent(4)), alignment=8),
    "six": mix(full(4), latent(4), window(10, 4), window(20, 4), chunked(16, 4), states(4)),
    "six wide ones": mix(
        *(full(4), latent(4), full(8), latent(8), window(WIDE, 4), window(WIDE + 9, 8)),
        alignment=8,
    ),
}


def dense(mix: Mix) -> Mix:
    """Return the groups with a cache that keeps every block that it computes."""
    return replace(mix, retention=None)
