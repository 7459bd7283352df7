"""From a model's config.json to its layers, and what each layer keeps in the cache."""

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
from kvbraid.models.shapes import Heads, State, StatePart, StateTensor

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
    "State",
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
