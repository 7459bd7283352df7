"""From a model's config.json to its layers, and what each layer keeps in the cache.

In reading order:

    config         a config, read field by field; `files` finds it, `known` has some by name
    shapes         what one layer keeps; `cache_types` are its element types
    layers         the answer: which layers need which cache
    read           from a config to that answer
    registry       the table of architectures; `family` is the type of its rows
    attention      rows of attention alone; `named` are those with field names of their own
    recurrent      rows with recurrent layers
    patterns       which caches each layer owns
    sizes          what a layer of each role keeps
    pages          the memory of one layer's block
    grouping       which layers share a block table; `packing` is the same for mixed pages
    engine_groups  from a config and an engine's options to groups
    sglang         what SGLang keeps of a model
    prefill_cost   what a reused prefix saves
"""

from kvbraid.models.engine_groups import EngineOptions, GroupedModel, group_config, group_layers
from kvbraid.models.files import find_config, read_config
from kvbraid.models.grouping import Grouping, LayerGroup, form_groups
from kvbraid.models.known import CONFIGS
from kvbraid.models.layers import KindLayers, LayerSpec, ModelLayers
from kvbraid.models.packing import packed_groups
from kvbraid.models.pages import CacheLayer, Page
from kvbraid.models.prefill_cost import PrefillCost, prefill_cost
from kvbraid.models.read import (
    MODEL_TYPES,
    complete,
    engine_layers,
    kinds_of,
    model_groups,
    unsent_tokens,
)
from kvbraid.models.sglang import silent_groups, with_silent_groups
from kvbraid.models.shapes import Heads, RecurrentState, StatePart, StateTensor

__all__ = [
    "CONFIGS",
    "MODEL_TYPES",
    "CacheLayer",
    "EngineOptions",
    "GroupedModel",
    "Grouping",
    "Heads",
    "KindLayers",
    "LayerGroup",
    "LayerSpec",
    "ModelLayers",
    "Page",
    "PrefillCost",
    "RecurrentState",
    "StatePart",
    "StateTensor",
    "complete",
    "engine_layers",
    "find_config",
    "form_groups",
    "group_config",
    "group_layers",
    "kinds_of",
    "model_groups",
    "packed_groups",
    "prefill_cost",
    "read_config",
    "silent_groups",
    "unsent_tokens",
    "with_silent_groups",
]
