"""Architectures with recurrent layers: Mamba, delta nets, lightning, short convolutions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvbraid.models.config import ConfigReader, Default
from kvbraid.models.family import (
    ATTENTION,
    DIVIDED,
    Family,
    per_head,
)
from kvbraid.models.layers import LayerSpec
from kvbraid.models.patterns import (
    BOTH,
    FULL,
    NO_CACHE,
    STATE,
    Layers,
    Role,
    at,
    decoder_decoder,
    every,
    every_nth,
    first_of,
    last_of_each,
    listed,
    period,
    spelled,
    windowed,
)
from kvbraid.models.sizes import (
    Attention,
    Latent,
    Mamba1,
    Mamba2,
    delta,
    gated_delta,
    kimi_delta,
    lightning,
    short_conv,
)
from kvbraid.spec import SpecKind

GATED_DELTA: Final = Family(
    pattern=first_of(
        listed("layer_types"), every_nth("full_attention_interval", nth=FULL, others=STATE)
    ),
    sizes={Role.FULL: ATTENTION, Role.STATE: gated_delta},
    fields="layer_types, full_attention_interval",
)
OLMO_HYBRID: Final = replace(GATED_DELTA, defaults=DIVIDED)
KIMI_LINEAR: Final = Family(
    pattern=first_of(
        at("linear_attn_config.full_attn_layers", inside=FULL, outside=STATE, first=1),
        at("linear_attn_config.kda_layers", inside=STATE, outside=FULL, first=1),
    ),
    sizes={Role.FULL: Latent(), Role.STATE: kimi_delta},
    fields="linear_attn_config.full_attn_layers",
    engine_state_dtype="float32",
)


def is_delta(config: ConfigReader) -> bool:
    """Whether a Bailing hybrid keeps delta states (its third version) or lightning ones."""
    return config.find("short_conv_kernel_size") is not None


def bailing_state(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one state."""
    if not is_delta(config):
        return lightning(config)
    return delta(config, "num_attention_heads", "head_dim", "short_conv_kernel_size")


def bailing_layers(config: ConfigReader) -> Layers | None:
    """The last layer of each group is full; with delta states, layers left at the end are too."""
    tail = FULL if is_delta(config) else STATE
    return last_of_each("layer_group_size", tail=tail, last=FULL, others=STATE)(config)


BAILING_HYBRID: Final = Family(
    pattern=bailing_layers,
    sizes={Role.FULL: Latent(), Role.STATE: bailing_state},
    fields="layer_group_size",
    defaults=DIVIDED,
    engine_state_dtype=lambda config: (
        "float32" if is_delta(config) else str(config.find("dtype", "torch_dtype"))
    ),
)
LIGHTNING: Final = Family(
    pattern=first_of(listed("attn_type_list", {0: STATE, 1: FULL}), listed("layer_types")),
    sizes={Role.FULL: ATTENTION, Role.STATE: lightning},
    fields="attn_type_list, layer_types",
    defaults=DIVIDED,
)
JAMBA: Final = Family(
    pattern=first_of(
        listed("layers_block_type"),
        listed("layer_types"),
        period("attn_layer_period", "attn_layer_offset", nth=FULL, others=STATE),
    ),
    sizes={
        Role.FULL: ATTENTION,
        Role.STATE: Mamba1(expand="mamba_expand", state="mamba_d_state", kernel="mamba_d_conv"),
    },
    fields="layers_block_type, attn_layer_period",
    defaults=DIVIDED,
)


def layers_listed(config: ConfigReader) -> int:
    """Return the number of layers of a config that has only a list of them."""
    listing = config.find("hybrid_override_pattern") or config.find("layers_block_type")
    if not isinstance(listing, (str, list)):
        raise config.missing("num_hidden_layers")
    return len(listing)


NEMOTRON_ATTENTION: Final = Attention(key_dim=("attention_head_dim", "head_dim"))
NEMOTRON_H: Final = Family(
    pattern=windowed(
        first_of(
            spelled(
                "hybrid_override_pattern", {"M": STATE, "*": FULL, "-": NO_CACHE, "E": NO_CACHE}
            ),
            listed("layers_block_type"),
        )
    ),
    sizes={
        Role.FULL: NEMOTRON_ATTENTION,
        Role.WINDOW: replace(
            NEMOTRON_ATTENTION, kind=SpecKind.SLIDING_WINDOW, window=("sliding_window",)
        ),
        Role.STATE: Mamba2(
            heads="mamba_num_heads",
            head_dim="mamba_head_dim",
            groups="n_groups",
            state="ssm_state_size",
            kernel="conv_kernel",
        ),
    },
    fields="hybrid_override_pattern, layers_block_type",
    defaults={"num_hidden_layers": layers_listed},
    engine_state_dtype="float32",
)
BAMBA_MAMBA: Final = Mamba2(
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    groups="mamba_n_groups",
    state="mamba_d_state",
    kernel="mamba_d_conv",
)
BAMBA_DEFAULTS: Final[Mapping[str, Default]] = {
    **DIVIDED,
    "mamba_d_head": per_head("mamba_n_heads", "mamba_expand"),
}
BAMBA: Final = Family(
    pattern=first_of(
        listed("layer_types"),
        listed("layers_block_type"),
        at("attn_layer_indices", inside=FULL, outside=STATE),
    ),
    sizes={Role.FULL: ATTENTION, Role.STATE: BAMBA_MAMBA},
    fields="layer_types, attn_layer_indices",
    defaults=BAMBA_DEFAULTS,
)
FALCON_H1: Final = Family(
    pattern=every(BOTH),
    sizes={Role.FULL: ATTENTION, Role.STATE: BAMBA_MAMBA},
    fields="num_hidden_layers",
    defaults=BAMBA_DEFAULTS,
)
ZAMBA2: Final = Family(
    pattern=first_of(
        listed("layers_block_type"), at("hybrid_layer_ids", inside=BOTH, outside=STATE)
    ),
    sizes={
        Role.FULL: Attention(kv_heads=("num_attention_heads",), key_dim=("attention_head_dim",)),
        Role.STATE: Mamba2(
            heads="n_mamba_heads",
            head_dim="mamba_headdim",
            groups="mamba_ngroups",
            state="mamba_d_state",
            kernel="mamba_d_conv",
        ),
    },
    fields="layers_block_type, hybrid_layer_ids",
    defaults={"mamba_headdim": per_head("n_mamba_heads", "mamba_expand")},
    first=(Role.FULL,),  # The shared attention blocks are built before the layers that use them.
)
PURE_MAMBA: Final = Family(
    pattern=every(STATE),
    sizes={
        Role.STATE: Mamba1(
            expand="expand",
            inner=("intermediate_size",),
            state="state_size",
            kernel="conv_kernel",
        )
    },
    fields="num_hidden_layers",
)
PURE_MAMBA2: Final = Family(
    pattern=every(STATE),
    sizes={
        Role.STATE: Mamba2(
            heads="num_heads",
            head_dim="head_dim",
            groups="n_groups",
            state="state_size",
            kernel="conv_kernel",
        )
    },
    fields="num_hidden_layers",
)
LFM2: Final = Family(
    pattern=first_of(listed("layer_types"), at("full_attn_idxs", inside=FULL, outside=STATE)),
    sizes={Role.FULL: ATTENTION, Role.STATE: short_conv},
    fields="layer_types, full_attn_idxs",
    defaults={**DIVIDED, "conv_dim": lambda config: config.size("hidden_size")},
)


def listed_window(config: ConfigReader) -> LayerSpec:
    """Windowed attention whose window may be listed per layer, null for a layer without one."""
    value = config.find("sliding_window")
    given = value if isinstance(value, list) else [value]
    windows = {config.as_size("sliding_window", each) for each in given if each is not None}
    if len(windows) != 1:
        raise config.wrong("sliding_window", value, "one window size")
    return replace(ATTENTION(config), kind=SpecKind.SLIDING_WINDOW, window=windows.pop())


PHI4FLASH: Final = Family(
    pattern=decoder_decoder,
    sizes={
        Role.FULL: ATTENTION,
        Role.WINDOW: listed_window,
        Role.STATE: Mamba1(expand="mamba_expand", state="mamba_d_state", kernel="mamba_d_conv"),
    },
    fields="mb_per_layer",
    defaults=DIVIDED,
)
