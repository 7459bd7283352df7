"""Models that have a name: the fields of their configs that decide layers and groups.

They come from the configs in tests/fixtures/models, whose sources.json says where each is from; a
test checks that layers and groups agree.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "gpt-oss-120b": {
            "model_type": "gpt_oss",
            "hidden_size": 2_880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
        },
        "gemma-3-27b": {
            "model_type": "gemma3_text",
            "torch_dtype": "bfloat16",
            "hidden_size": 5_376,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1_024,
        },
        "qwen3-next-80b-a3b": {
            "model_type": "qwen3_next",
            "torch_dtype": "bfloat16",
            "hidden_size": 2_048,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
        },
        "jamba-mini": {
            "model_type": "jamba",
            "torch_dtype": "bfloat16",
            "hidden_size": 4_096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_offset": 4,
            "attn_layer_period": 8,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_expand": 2,
        },
        "llama-3.1-8b": {
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "hidden_size": 4_096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    }
)
"""The name of each model, and fields of its config."""
