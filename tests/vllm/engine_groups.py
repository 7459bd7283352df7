"""The groups, sizes and alignments that a real vLLM's own functions compute from our layers.

`get_kv_cache_groups` is called with what it reads of an engine's configuration: whether the hybrid
manager is on, the layout, no draft model.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from kvbraid.models import CacheLayer, Heads, Page, RecurrentState
from kvbraid.spec import SpecKind
from vllm.model_executor.layers.attention.mla_attention import MLAAttention, MLACommonBackend
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_bytes_per_block,
    get_kv_cache_groups,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    get_kv_cache_spec_kind,
    get_kv_quant_mode,
    iter_layer_specs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

SHAPES: Final = MambaStateShapeCalculator
ENGINE: Final = SimpleNamespace(
    scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
    cache_config=SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        block_size=16,
        prefix_match_unit=None,
        enable_prefix_caching=True,
    ),
    parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    attention_config=SimpleNamespace(hisparse_config=None),
    speculative_config=None,
    kv_transfer_config=None,
)
SLIDING: Final = {
    SpecKind.SLIDING_WINDOW: SlidingWindowSpec,
    SpecKind.SLIDING_WINDOW_MLA: SlidingWindowMLASpec,
}
register_all_kvcache_specs(ENGINE)


def theirs(page: Page) -> KVCacheSpec:
    """The engine's spec of one of our pages."""
    if isinstance(page.shape, RecurrentState):
        return MambaSpec(
            block_size=page.block_size,
            shapes=tuple(tensor.dims for tensor in page.shape.tensors),
            dtypes=tuple(getattr(torch, tensor.dtype) for tensor in page.shape.tensors),
            page_size_padded=page.padded_bytes,
            mamba_cache_mode="align",
        )
    fields: dict[str, Any] = {
        "block_size": page.block_size,
        "num_kv_heads": page.shape.num,
        "head_size": page.shape.key_dim,
        "head_size_v": page.shape.value_dim,
        "dtype": getattr(torch, page.shape.dtype),
        "state_content_bytes": _content_bytes(page.shape),
        "page_size_padded": page.padded_bytes,
        "tokens_per_state": page.tokens_per_entry,
    }
    if page.kind.is_window:
        window = SLIDING[page.kind]
        return window(**fields, sliding_window=page.window)
    if page.kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        return ChunkedLocalAttentionSpec(**fields, attention_chunk_size=page.chunk)
    kind = MLAAttentionSpec if page.kind is SpecKind.MLA_ATTENTION else FullAttentionSpec
    return kind(**fields)


def _content_bytes(heads: Heads) -> int | None:
    """Bytes of one head of one token, which a spec has only if scales are among them."""
    return heads.bytes_per_token // heads.num if heads.scale_bytes else None


def quantized_bytes(heads: Heads, *, is_latent: bool, cache_dtype: str) -> int:
    """Bytes of a token of these heads in a cache of this type, as backends pack it."""
    fields: dict[str, Any] = {
        "block_size": 1,
        "num_kv_heads": heads.num,
        "head_size": heads.key_dim,
        "dtype": STR_DTYPE_TO_TORCH_DTYPE[cache_dtype],
        "kv_quant_mode": get_kv_quant_mode(cache_dtype),
    }
    if is_latent:
        spec = MLACommonBackend.customize_spec(MLAAttentionSpec(**fields))
    else:
        spec = TritonAttentionBackend.customize_spec(
            FullAttentionSpec(**fields, head_size_v=heads.value_dim)
        )
    return int(spec.page_size_bytes)


def latent_row_bytes(heads: Heads, *, cache_dtype: str) -> int:
    """Bytes of a token of a latent, as the engine's layer asks for them."""
    layer = SimpleNamespace(
        kv_cache_dtype=cache_dtype,
        head_size=heads.key_dim,
        sliding_window=None,
        indexer=None,
        non_causal_multi_token_decode=False,
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        cache_config=SimpleNamespace(block_size=1),
    )
    return int(MLAAttention.get_kv_cache_spec(layer, config).page_size_bytes)


def described_without_hybrid_manager(layers: Sequence[CacheLayer]) -> list[object] | str:
    """The same of an engine whose hybrid manager is off; it refuses with a ValueError."""
    with patch.object(ENGINE.scheduler_config, "disable_hybrid_kv_cache_manager", True):
        try:
            return described(layers)
        except ValueError:
            return "refused"


def described(
    layers: Sequence[CacheLayer], layout: KVCacheLayout = KVCacheLayout.LBNHC
) -> list[object] | str:
    """What the engine makes of our layers: groups, sizes, and how they align.

    A group without layers (StopIteration), and a layer without a group, count as refused.
    """
    specs = {str(layer.number): theirs(layer.page) for layer in layers}
    try:
        with patch.object(ENGINE.cache_config, "get_resolved_kv_cache_layout", lambda: layout):
            groups = get_kv_cache_groups(ENGINE, specs)
    except (NotImplementedError, StopIteration):
        return "refused"
    if {name for group in groups for name in group.layer_names} != set(specs):
        return "refused"
    config = SimpleNamespace(kv_cache_groups=groups)
    rows: list[object] = [
        (
            [int(name) for name in group.layer_names],
            get_kv_cache_spec_kind(group.kv_cache_spec).value,
            group.kv_cache_spec.block_size,
            sorted({spec.page_size_bytes for spec in iter_layer_specs(group.kv_cache_spec)}),
        )
        for group in groups
    ]
    if len(groups) > 1:  # With one group the engine takes the block size it was started with.
        rows.append(resolve_kv_cache_block_sizes(config, ENGINE))
    return [*rows, _get_kv_cache_bytes_per_block(groups, layout)]


def aligned(page: Page, state: RecurrentState, kernel_block: int) -> tuple[int, int | None]:
    """The block size and the padded state page that the engine settles on at start-up."""
    assert isinstance(page.shape, Heads)
    heads = page.shape
    cache = SimpleNamespace(
        block_size=page.block_size,
        cache_dtype="auto",
        mamba_cache_mode="align",
        mamba_page_size_padded=None,
    )
    model = SimpleNamespace(
        dtype=getattr(torch, heads.dtype),
        use_mla=page.kind is SpecKind.MLA_ATTENTION,
        get_num_kv_heads=lambda _: heads.num,
        get_head_size=lambda: heads.key_dim,
        architecture="",
    )
    spec = theirs(Page(kind=SpecKind.MAMBA, block_size=1, shape=state))
    states = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: spec.shapes,
        get_mamba_state_dtype_from_config=lambda _: spec.dtypes,
    )
    backend = SimpleNamespace(
        get_supported_kernel_block_sizes=lambda: [MultipleOf(kernel_block)],
        customize_spec=lambda attention: attention,
    )
    config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    with (
        patch("vllm.config.vllm.set_current_vllm_config", nullcontext),
        patch.object(Platform, "_find_non_ssm_backends", lambda _: [backend]),
        patch(
            "vllm.model_executor.models.ModelRegistry.resolve_model_cls",
            lambda *_, **__: (states, ""),
        ),
    ):
        Platform._align_hybrid_block_size(config, backend)
    return cache.block_size, cache.mamba_page_size_padded
