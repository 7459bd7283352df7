"""Architectures of attention layers alone: full, windowed, chunked, latent, sparse."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvbraid.models.config import Default
from kvbraid.models.family import ATTENTION, DIVIDED, USUAL, Family
from kvbraid.models.patterns import (
    FULL,
    WINDOW,
    Role,
    every,
    every_nth,
    first_of,
    full_unless,
    listed,
    owners,
    repeated,
    shared_by_factor,
    window_from_layer,
)
from kvbraid.models.sizes import Attention, Latent, SharedKeyValue, Sizer
from kvbraid.spec import SpecKind

SLIDING: Final = Attention(kind=SpecKind.SLIDING_WINDOW, window=("sliding_window",))
CHUNKED: Final = Attention(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, chunk=("attention_chunk_size",))
FULL_AND_WINDOW: Final[Mapping[Role, Sizer]] = {Role.FULL: ATTENTION, Role.WINDOW: SLIDING}
GEMMA_HEADS: Final[Mapping[str, Default]] = {"head_dim": 256}

DENSE: Final = Family(
    pattern=every(FULL), sizes={Role.FULL: ATTENTION}, fields="num_hidden_layers", defaults=USUAL
)
WINDOW_IF_SET: Final = Family(
    pattern=first_of(listed("layer_types"), full_unless("sliding_window", every(WINDOW))),
    sizes=FULL_AND_WINDOW,
    fields="layer_types, sliding_window",
    defaults=USUAL,
)
WINDOW_BY_FLAG: Final = Family(
    pattern=first_of(listed("layer_types"), window_from_layer),
    sizes=FULL_AND_WINDOW,
    fields="layer_types, use_sliding_window",
    defaults=USUAL,
)
MLA: Final = Family(pattern=every(FULL), sizes={Role.FULL: Latent()}, fields="num_hidden_layers")
MLA_INDEXED: Final = Family(
    pattern=every(FULL),
    sizes={Role.FULL: Latent(index=("index_head_dim",))},
    fields="num_hidden_layers",
)


def interleaved(step: int | None, defaults: Mapping[str, Default]) -> Family:
    """Windows with every n-th layer full; `step` where the class fixes n."""
    fixed: Mapping[str, Default] = {} if step is None else {"sliding_window_pattern": step}
    return Family(
        pattern=first_of(
            listed("layer_types"),
            repeated("sliding_window_pattern", {"L": WINDOW, "G": FULL}),
            every_nth("sliding_window_pattern", nth=FULL, others=WINDOW),
        ),
        sizes=FULL_AND_WINDOW,
        fields="layer_types, sliding_window_pattern",
        defaults={**defaults, **fixed},
    )


EXAONE4: Final = Family(
    pattern=full_unless("sliding_window", interleaved(None, {}).pattern),
    sizes=FULL_AND_WINDOW,
    fields="layer_types, sliding_window_pattern",
    defaults=DIVIDED,
)
GEMMA: Final = Family(
    pattern=every(FULL),
    sizes={Role.FULL: ATTENTION},
    fields="num_hidden_layers",
    defaults=GEMMA_HEADS,
)
GEMMA2: Final = interleaved(2, GEMMA_HEADS)
GPT_OSS: Final = interleaved(2, {})
FOURTH_FULL: Final = interleaved(4, USUAL)
COHERE2: Final = replace(
    FOURTH_FULL, sizes={Role.FULL: ATTENTION, Role.WINDOW: replace(SLIDING, itself=1)}
)
GEMMA3: Final = interleaved(
    6, {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
)
GEMMA3N: Final = Family(
    pattern=owners(listed("layer_types")),
    sizes=FULL_AND_WINDOW,
    fields="layer_types",
    defaults=GEMMA_HEADS,
)
GEMMA4: Final = Family(
    pattern=owners(listed("layer_types")),
    sizes={
        Role.FULL: Attention(
            kv_heads=("num_global_key_value_heads",), key_dim=("global_head_dim",)
        ),
        Role.WINDOW: SLIDING,
    },
    fields="layer_types",
    defaults={"num_global_key_value_heads": lambda config: config.size("num_key_value_heads")},
)
LLAMA4: Final = Family(
    pattern=full_unless(
        "attention_chunk_size",
        first_of(
            listed("layer_types"),
            listed("no_rope_layers", {1: (Role.CHUNK,), 0: FULL}),
            every_nth("no_rope_layer_interval", nth=FULL, others=(Role.CHUNK,)),
        ),
    ),
    sizes={Role.FULL: ATTENTION, Role.CHUNK: CHUNKED},
    fields="layer_types, no_rope_layers",
    defaults={**USUAL, "no_rope_layer_interval": 4},
)
MINIMAX_M3: Final = Family(
    pattern=listed("sparse_attention_config.sparse_attention_freq", {0: FULL, 1: (Role.SPARSE,)}),
    sizes={
        Role.FULL: ATTENTION,
        Role.SPARSE: Attention(
            index=(
                ("sparse_attention_config.sparse_num_index_heads",),
                ("sparse_attention_config.sparse_index_dim",),
            )
        ),
    },
    fields="sparse_attention_config.sparse_attention_freq",
)
MIMO_V2: Final = Family(
    pattern=listed("hybrid_layer_pattern", {0: FULL, 1: WINDOW}),
    sizes={
        Role.FULL: Attention(value_dim=("v_head_dim",)),
        Role.WINDOW: Attention(
            kind=SpecKind.SLIDING_WINDOW,
            kv_heads=("swa_num_key_value_heads",),
            key_dim=("swa_head_dim",),
            value_dim=("swa_v_head_dim",),
            window=("sliding_window", "sliding_window_size"),
        ),
    },
    fields="hybrid_layer_pattern",
)
STEP3: Final = Family(
    pattern=listed("layer_types"),
    sizes={
        Role.FULL: Attention(kv_heads=("num_attention_groups", "num_key_value_heads")),
        Role.WINDOW: Attention(
            kind=SpecKind.SLIDING_WINDOW,
            kv_heads=(
                "attention_other_setting.num_attention_groups",
                "num_attention_groups",
                "num_key_value_heads",
            ),
            key_dim=("attention_other_setting.head_dim", "head_dim"),
            window=("sliding_window",),
        ),
    },
    fields="layer_types",
)
DEEPSEEK_V4: Final = Family(
    pattern=listed(
        "compress_ratios",
        {
            0: WINDOW,
            4: (Role.COMPRESSED_4, Role.WINDOW),
            128: (Role.COMPRESSED_128, Role.WINDOW),
        },
    ),
    sizes={
        Role.COMPRESSED_4: SharedKeyValue(
            kind=SpecKind.MLA_ATTENTION, ratio=4, index=("index_head_dim",)
        ),
        Role.COMPRESSED_128: SharedKeyValue(kind=SpecKind.MLA_ATTENTION, ratio=128),
        Role.WINDOW: SharedKeyValue(kind=SpecKind.SLIDING_WINDOW_MLA, window=("sliding_window",)),
    },
    fields="compress_ratios",
)
HUNYUAN: Final = Family(
    pattern=shared_by_factor,
    sizes={Role.FULL: ATTENTION},
    fields="num_hidden_layers",
    defaults=USUAL,
)
