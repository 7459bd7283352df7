"""A model's config.json -> its layers, and what each keeps in the cache."""

from kvbraid.models.files import read_config
from kvbraid.models.layers import KindLayers, LayerSpec, ModelLayers
from kvbraid.models.read import MODEL_TYPES, complete, kinds_of
from kvbraid.models.report import report

__all__ = [
    "MODEL_TYPES",
    "KindLayers",
    "LayerSpec",
    "ModelLayers",
    "complete",
    "kinds_of",
    "read_config",
    "report",
]
