"""Memory that a real vLLM's own functions lay out for our layers, and its bytes for numpy.

Groups, tensors, allocation and views are the engine's; the configuration has what they read of it.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from kvbraid.models import CacheLayer
from numpy.typing import NDArray
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, iter_layer_specs
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from tests.vllm.engine_groups import ENGINE, theirs

LAYOUTS: Final = tuple(layout.name for layout in KVCacheLayout)


def accepted(layers: Sequence[CacheLayer]) -> list[str]:
    """The layouts that the engine accepts for these layers, if its backends take any."""
    return [name for name in LAYOUTS if _is_accepted(name, layers)]


def _is_accepted(name: str, layers: Sequence[CacheLayer]) -> bool:
    cache = SimpleNamespace(kv_cache_layout=None)
    config = SimpleNamespace(cache_config=cache, kv_transfer_config=None)
    try:
        resolve_kv_cache_layout(config, [[name]], [theirs(layer.page) for layer in layers])
        engine_config(layers, name, num_blocks=2)
    except (AssertionError, NotImplementedError, StopIteration, ValueError):
        return False  # Each of them is a way in which the engine says that it cannot.
    return True


def engine_config(
    layers: Sequence[CacheLayer], layout: str, *, num_blocks: int, rest: int = 0
) -> KVCacheConfig:
    """The engine's config for memory of so many blocks and `rest` bytes, too few for another."""
    specs = {str(layer.number): theirs(layer.page) for layer in layers}
    cache: dict[str, Any] = {
        "get_resolved_kv_cache_layout": lambda: KVCacheLayout[layout],
        "num_gpu_blocks_override": None,
        "prefix_cache_retention_interval": None,
    }
    with patch.multiple(ENGINE.cache_config, create=True, **cache):
        groups = get_kv_cache_groups(ENGINE, specs)
        one = get_kv_cache_config_from_groups(ENGINE, groups, 1 << 40)
        block_bytes = one.kv_cache_tensors[0].size // one.num_blocks
        return get_kv_cache_config_from_groups(ENGINE, groups, num_blocks * block_bytes + rest)


def allocate(
    config: KVCacheConfig, layout: str, kernel_block: int | None = None
) -> dict[str, torch.Tensor]:
    """The views that the engine's worker makes; attention's blocks split into kernel blocks."""
    kernel_blocks = [
        kernel_block
        if kernel_block is not None and _is_attention(group.kv_cache_spec)
        else group.kv_cache_spec.block_size
        for group in config.kv_cache_groups
    ]
    device = torch.device("cpu")
    views: dict[str, torch.Tensor] = allocate_kv_cache(
        config, device, KVCacheLayout[layout], kernel_blocks
    )
    return views


def _is_attention(spec: Any) -> bool:  # noqa: ANN401 - vLLM's own type.
    return all(isinstance(each, AttentionSpec) for each in iter_layer_specs(spec))


def as_bytes(
    views: Mapping[str, torch.Tensor],
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """The views' bytes, and those of the allocation in which they lie."""
    storage = next(iter(views.values())).untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return {name: view.view(torch.uint8).numpy() for name, view in views.items()}, memory
