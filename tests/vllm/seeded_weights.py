"""Weights that make a tiny model's outputs depend on all of its prompt, the same in every process.

Dummy weights are so small that most prompts are answered by one constant token: two caches agree
on it whatever they hold. Here every tensor is drawn from a generator seeded by its name and scaled
so that attention is sharp and what the layers add outweighs the embedding of the last token.
Imported by the engine's process alone, where vLLM is.
"""

import math
from zlib import crc32

import torch
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

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


@register_model_loader(LOAD_FORMAT)
class SeededLoader(BaseModelLoader):  # type: ignore[misc] # Untyped where vLLM is not installed.
    """Draws weights instead of reading them."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing has to be downloaded."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Fill every parameter."""
        del model_config
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                parameter.data.copy_(_drawn(name, parameter))


def _drawn(name: str, like: torch.Tensor) -> torch.Tensor:
    constant = next((value for part, value in _CONSTANTS if part in name), None)
    if constant is not None:
        return torch.full(like.shape, constant)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    gain = next((value for part, value in _GAINS if part in name), 1.0)
    return torch.randn(like.shape, generator=generator) * gain / math.sqrt(like.shape[-1])
