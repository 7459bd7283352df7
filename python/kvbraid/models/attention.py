"""Architectures that have only attention layers: full, windowed, chunked, latent, sparse."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvbraid.models.config import ConfigReader, Default
from kvbraid.models.family import ATTENTION, DIVIDED, USUAL, Family
from kvbraid.models.layers import LayerSpec
from kvbraid.models.patterns import (
    FULL,
    WINDOW,
    Role,
    all_or_none,
    cycled,
    every,
    every_nth,
    first_of,
    full_unless,
    listed,
    looped,
    owners,
    repeated,
    shared_by_factor,
    two_of_each,
    where,
    window_from_layer,
    windows_listed,
)
from kvbraid.models.sizes import KV_HEADS, Attention, Latent, SharedKeyValue, Sizer
from kvbraid.spec import SpecKind

SLIDING: Final = Attention(kind=SpecKind.SLIDING_WINDOW, window=("sliding_window",))
CHUNKED: Final = Attention(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, chunk=("attention_chunk_size",))
FULL_AND_WINDOW: Final[Mapping[Role, Sizer]] = {Role.FULL: ATTENTION, Role.WINDOW: SLIDING}
GEMMA_HEADS: Final[Mapping[str, Default]] = {"head_dim": 256}

WINDOWS: Final = full_unless("sliding_window", every(WINDOW))
# If a window is set and no layer types are listed, an engine gives it to all layers.
DENSE: Final = Family(
    pattern=all_or_none(WINDOWS),
    sizes=FULL_AND_WINDOW,
    fields="num_hidden_layers",
    defaults=USUAL,
)
WINDOW_IF_SET: Final = replace(
    DENSE,
    pattern=first_of(listed("layer_types"), WINDOWS),
    fields="layer_types, sliding_window",
)
WINDOW_IF_LISTED: Final = replace(
    DENSE, pattern=first_of(listed("layer_types"), every(FULL)), fields="layer_types"
)
ALWAYS_LISTED: Final = replace(DENSE, pattern=listed("layer_types"), fields="layer_types")
WINDOW_BY_FLAG: Final = Family(
    pattern=first_of(listed("layer_types"), window_from_layer),
    sizes=FULL_AND_WINDOW,
    fields="layer_types, use_sliding_window",
    defaults=USUAL,
)
WINDOW_OR_FULL_BY_FLAG: Final = replace(
    DENSE,
    pattern=where("use_sliding_window", all_or_none(WINDOWS)),
    fields="use_sliding_window",
)
NO_WINDOW: Final = replace(DENSE, pattern=every(FULL))
WINDOW_WITHOUT_ROTATION: Final = replace(
    DENSE,
    pattern=first_of(
        listed("layer_types"),
        where(
            "use_sliding_window",
            full_unless(
                "sliding_window",
                first_of(
                    listed("no_rope_layers", {1: FULL, 0: WINDOW}),
                    every_nth("no_rope_layer_interval", nth=WINDOW, others=FULL),
                ),
            ),
        ),
    ),
    fields="layer_types, no_rope_layers",
    defaults={**USUAL, "no_rope_layer_interval": 4},
)
MUSE_GLIMMER: Final = replace(
    DENSE,
    pattern=listed("no_rope_layers", {1: WINDOW, 0: FULL}),
    fields="no_rope_layers",
)
RNJ1: Final = replace(
    DENSE,
    pattern=listed("layer_types", {"chunked_attention": WINDOW, "full_attention": FULL}),
    fields="layer_types",
    defaults={},
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
AFMOE: Final = replace(
    FOURTH_FULL,
    pattern=first_of(
        listed("layer_types"),
        every_nth("global_attn_every_n_layers", nth=FULL, others=WINDOW),
    ),
    fields="layer_types, global_attn_every_n_layers",
    defaults=USUAL,
)
EXAONE_MOE: Final = Family(
    pattern=listed("layer_types"),
    sizes={
        Role.FULL: ATTENTION,
        Role.WINDOW: replace(SLIDING, window=("sliding_windows", "sliding_window")),
    },
    fields="layer_types",
    defaults=DIVIDED,
    per_layer=("sliding_windows",),
)
PLAMO3: Final = Family(
    pattern=first_of(
        windows_listed("interleaved_sliding_window"),
        every_nth("sliding_window_pattern", nth=FULL, others=WINDOW),
    ),
    sizes={
        Role.FULL: ATTENTION,
        Role.WINDOW: replace(SLIDING, window=("interleaved_sliding_window", "sliding_window")),
    },
    fields="interleaved_sliding_window, sliding_window_pattern",
    per_layer=("interleaved_sliding_window",),
)
PANGU: Final = Family(
    pattern=first_of(windows_listed("interleaved_sliding_window"), every(FULL)),
    sizes={
        Role.FULL: ATTENTION,
        Role.WINDOW: replace(SLIDING, window=("interleaved_sliding_window",)),
    },
    fields="num_hidden_layers",
    defaults=USUAL,
    per_layer=("interleaved_sliding_window",),
)
LOOPED: Final = Family(
    pattern=looped,
    sizes={Role.FULL: ATTENTION, Role.WINDOW: replace(SLIDING, window=("loop_window_size",))},
    fields="num_hidden_layers",
    defaults={**USUAL, "loop_num": 2, "loop_window_size": 64},
)
CYCLED: Final = Family(
    pattern=cycled,
    sizes={Role.FULL: Attention(kv_heads=("num_attention_heads",))},
    fields="num_hidden_layers",
)
TWO_LATENTS: Final = replace(MLA, pattern=two_of_each)
UNCOMPRESSED: Final = Family(
    pattern=every(FULL),
    sizes={Role.FULL: Attention(kv_heads=("num_attention_heads",), key_dim=("qk_head_dim",))},
    fields="num_hidden_layers",
    defaults={
        "qk_head_dim": lambda config: (
            config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim")
        )
    },
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


def gemma4_full(config: ConfigReader) -> LayerSpec:
    """Return a full layer's bytes; only a layer that keeps keys alone has its own heads."""
    alone = config.find("attention_k_eq_v") is True
    kv_heads = ("num_global_key_value_heads",) if alone else KV_HEADS
    return Attention(kv_heads=kv_heads, key_dim=("global_head_dim",))(config)


GEMMA4: Final = Family(
    pattern=owners(listed("layer_types")),
    sizes={Role.FULL: gemma4_full, Role.WINDOW: SLIDING},
    fields="layer_types",
    defaults={"num_global_key_value_heads": lambda config: config.size("num_key_value_heads")},
)
LLAMA4: Final = Family(
    pattern=full_unless(
        "attention_chunk_size",
        first_of(
            listed("layer_types"),
            listed("no_rope_layers", {1: (Role.CHUNK,), 0: FULL}, empty_is_absent=True),
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
HUNYUAN_LARGE: Final = Family(
    pattern=shared_by_factor,
    sizes={Role.FULL: ATTENTION},
    fields="num_hidden_layers",
    defaults=USUAL,
)
