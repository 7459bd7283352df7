"""What SGLang keeps of a model: not each layer's own need, but what its lists of models say.

SGLang keeps every layer in full, unless the model's architecture is on its list of models with a
window pool, or its config class on the list of those with states. Its events tell of full
attention only. The lists are those of SGLang 0.5.23, files of `sglang/srt`. What they leave open
is read so that a pod has one group more, never one less: then its answers are bounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Final

from kvbraid.errors import InvalidValueError, TopologyError, shortened
from kvbraid.models.config import text_model
from kvbraid.models.layers import ModelLayers
from kvbraid.models.read import kinds_of
from kvbraid.spec import GroupSpec, SilentGroup, SpecKind, Topology

# configs/model_config.py: is_hybrid_swa_model, SWA_SINK_ARCHS, MIMO_V2_MODEL_ARCHS.
_WINDOW_ARCHITECTURES: Final = frozenset(
    {
        "BeamForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForCausalLMDSpark",
        "DeepseekV4ForCausalLMNextN",
        "DiffusionGemmaForBlockDiffusion",
        "EmbeddingGemma2Model",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "IQuestQ1MTP",
        "InklingForConditionalGeneration",
        "InklingForConditionalGenerationMTP",
        "LagunaForCausalLM",
        "Llama4ForConditionalGeneration",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2MTP",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step3p5MTP",
        "Step3p7ForConditionalGeneration",
        "UnlimitedOCRForCausalLM",
    }
)
"""Architectures whose windows SGLang keeps in a pool of their own."""

_WINDOW_TYPES: Final = frozenset(
    {
        "deepseek_v4",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "granite_swa",
        "granitemoe_swa",
        "laguna",
        "llama4",
        "mellum",
        "mimo_v2",
        "mimo_v2_flash",
        "muse_glimmer",
        "muse_glimmer_text",
        "step3p5",
        "step3p7",
    }
)
"""The `model_type` of these architectures, as far as we read it: for configs that name none.

`llama4` is the model with pictures, which is on the list. `llama4_text` may be a part of it, or
the text model alone, which is not: the architecture must say so.
"""

# get_attention_sliding_window_size in models/gpt_oss.py, gemma4_*.py, mellum.py, muse_glimmer.py.
_WINDOWS_WITH_THE_TOKEN: Final = frozenset(
    {"gemma4", "gemma4_text", "gpt_oss", "mellum", "muse_glimmer", "muse_glimmer_text"}
)
"""Types whose window holds the token itself. For others SGLang's holds one token more."""

# configs/hybrid_arch.py, and uses_ssm_state in mem_cache/kv_cache_builder.py. The grid is that of
# mamba_cache_chunk_size in arg_groups/overrides.py, where the config class has none of its own.
_STATES: Final[Mapping[str, int]] = {
    "bailing_hybrid": 1,
    "falcon_h1": 1,
    "falcon_mamba": 1,
    "granitemoehybrid": 1,
    "kimi_linear": 64,
    "lfm2": 1,
    "lfm2_moe": 1,
    "mamba": 1,
    "mamba2": 1,
    "nemotron_h": 1,
    "qwen3_5": 64,
    "qwen3_5_moe": 64,
    "qwen3_5_moe_text": 64,
    "qwen3_5_text": 64,
    "qwen3_next": 64,
}
"""Types whose states SGLang keeps, and the tokens that a state ends at a multiple of, if known.

With pages of one token states may end anywhere (`no_buffer`, which needs such pages).
"""


def silent_groups(
    config: Mapping[str, object], *, disable_hybrid_swa_memory: bool = False
) -> tuple[SilentGroup, ...]:
    """Return the groups that SGLang keeps of a model beside full attention, and is silent about.

    `config` is the model's `config.json`, already parsed; `disable_hybrid_swa_memory` is the flag
    of that name with which the engine runs.

    Raises:
        InvalidValueError: The model is not known, or SGLang does not serve it as it is.
    """
    model = kinds_of(config)
    groups = []
    if _has_window_pool(config) and not disable_hybrid_swa_memory:
        groups.append(_window_group(config, model))
    if any(each.spec.kind is SpecKind.MAMBA for each in model.kinds):
        groups.append(_state_group(config, model))
    return tuple(groups)


def with_silent_groups(
    topology: Topology, silent: Sequence[SilentGroup], *, model_type: str
) -> Topology:
    """Add to listed groups those that an engine is silent about, and check the rest.

    A topology without groups stays without: its groups are learned from events.

    Raises:
        TopologyError: No full-attention group is listed, or a group that SGLang does not keep.
    """
    if not topology.groups:
        return topology
    full = [group for group in topology.groups if group.kind.is_full]
    if not full:
        kinds = ", ".join(group.kind.value for group in topology.groups)
        raise TopologyError(
            f"the groups of {model_type} are {kinds}; SGLang also keeps full attention, whatever "
            "the model: list a full_attention group, or no groups"
        )
    page = full[0].block_size
    known = [group.of_page(page) for group in silent]
    for group in topology.groups:
        if not (group.kind.is_full or any(_is_same(group, each) for each in known)):
            raise _contradiction(group, known, model_type)
    listed = topology.groups
    missing = [each for each in known if not any(_is_same(group, each) for group in listed)]
    grid = lcm(*(group.grid for group in silent)) if page > 1 else 1
    return replace(
        topology,
        groups=(*listed, *missing),
        alignment=topology.alignment or (lcm(page, grid) if grid > 1 else None),
    )


def _has_window_pool(config: Mapping[str, object]) -> bool:
    text = text_model(config)
    listed = config.get("architectures")
    names = {str(name) for name in listed} if isinstance(listed, list) else set()
    types = {str(each.get("model_type")) for each in (config, text)}
    if "laguna" in types and not text.get("sliding_window"):
        return False
    if names & _WINDOW_ARCHITECTURES or types & _WINDOW_TYPES or text.get("is_hybrid_swa"):
        return True
    return not names and "llama4_text" in types


def _window_group(config: Mapping[str, object], model: ModelLayers) -> SilentGroup:
    """Return the group of a window pool: SGLang has one window, so the largest of the model."""
    specs = [each.spec for each in model.kinds]
    windows = [spec.window or spec.chunk for spec in specs]
    window = max((tokens for tokens in windows if tokens is not None), default=None)
    if window is None:
        raise InvalidValueError(
            f"SGLang keeps a window pool for {shortened(config.get('architectures'))} of "
            f"model_type {model.model_type!r}, but its config has no window; add `sliding_window`"
        )
    is_whole = model.model_type in _WINDOWS_WITH_THE_TOKEN
    return SilentGroup(kind=SpecKind.SLIDING_WINDOW, window=window + (not is_whole))


def _state_group(config: Mapping[str, object], model: ModelLayers) -> SilentGroup:
    grid = _STATES.get(model.model_type)
    if grid is None:
        raise InvalidValueError(
            f"model_type = {model.model_type!r} has states, and SGLang 0.5.23 keeps none of them; "
            "if yours does, list the groups in the topology and leave model_config out"
        )
    has_own_grid = config.get("mamba_chunk_size") is not None
    return SilentGroup(kind=SpecKind.MAMBA, grid=1 if has_own_grid else grid)


def _is_same(group: GroupSpec, silent: GroupSpec) -> bool:
    """Whether a listed group is a silent one: the kinds of windows are one, heads do not count."""
    is_kind = group.kind is silent.kind or (group.kind.is_window and silent.kind.is_window)
    sizes = (group.window, group.block_size), (silent.window, silent.block_size)
    return is_kind and sizes[0] == sizes[1]


def _contradiction(group: GroupSpec, known: Sequence[GroupSpec], model_type: str) -> TopologyError:
    def told(each: GroupSpec) -> str:
        size = each.window or each.chunk
        return f"{each.kind.value} of blocks of {each.block_size}" + (
            f" with {size} tokens" if size else ""
        )

    kept = "; ".join(["full attention", *map(told, known)])
    return TopologyError(
        f"a group {told(group)} contradicts what SGLang keeps of {model_type}: {kept}; leave the "
        "group out (what SGLang keeps is added), or correct the model's config"
    )
