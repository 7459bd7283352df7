"""Weights that make a tiny model's outputs depend on all of its prompt, the same in every process.

Dummy weights are so small that most prompts are answered by one constant token: two caches agree
on it whatever they hold. Here every tensor is drawn from a generator seeded by its name and scaled
so that attention is sharp and what the layers add outweighs the embedding of the last token.
Imported by the engine's process alone, where vLLM is.
"""

import math
from collections.abc import Iterable
from zlib import crc32

import torch
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.models.utils import extract_layer_index

LOAD_FORMAT = "kvbraid-seeded"

# By a part of the parameter's name, the first that fits: a constant to fill it with.
_CONSTANTS = (
    ("q_norm", 1.5),  # Sharp attention, in models that normalise queries and keys.
    ("k_norm", 1.5),
    ("norm", 1.0),
    ("A_log", -5.0),  # States that forget slowly.
    ("dt_bias", 0.0),
    ("sinks", 0.0),
    ("bias", 0.0),
)

# Likewise: a factor on top of the usual 1 / sqrt(inputs).
_GAINS = (("qkv_proj", 2.0), ("o_proj", 2.0), ("out_proj", 2.0))

# What some types of model have instead. Their attention looks at many tokens alike, so that no
# block is passed over; each layer is louder than all before it, so that a small change grows.
_EVEN_GAINS = (("qkv_proj", 1.2), ("gate_up_proj", 3.0), ("w1", 3.0))
_FIRST_LAYER_GAINS = {
    "llama4_text": (("o_proj", 0.4), ("down_proj", 0.1), ("w2", 0.1)),
    "lfm2": (("self_attn.out_proj", 1.5), ("short_conv.out_proj", 0.4), ("w2", 0.1)),
}
_LOUDER = 3.0  # Than the layer before.


@register_model_loader(LOAD_FORMAT)
class SeededLoader(BaseModelLoader):  # type: ignore[misc] # Untyped where vLLM is not installed.
    """Draws weights instead of reading them."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing has to be downloaded."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Fill every parameter."""
        kind = model_config.hf_text_config.model_type
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                parameter.data.copy_(_drawn(name, parameter, _gain(name, kind)))


def _first(table: Iterable[tuple[str, float]], name: str) -> float | None:
    return next((value for part, value in table if part in name), None)


def _gain(name: str, kind: str) -> float:
    if kind not in _FIRST_LAYER_GAINS:
        return _first(_GAINS, name) or 1.0
    of_first_layer = _first(_FIRST_LAYER_GAINS[kind], name)
    if of_first_layer is None:
        return _first(_EVEN_GAINS, name) or 1.0
    layer: int = extract_layer_index(name)
    return of_first_layer * _LOUDER**layer


def _drawn(name: str, like: torch.Tensor, gain: float) -> torch.Tensor:
    constant = _first(_CONSTANTS, name)
    if constant is not None:
        return torch.full(like.shape, constant)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    return torch.randn(like.shape, generator=generator) * gain / math.sqrt(like.shape[-1])
