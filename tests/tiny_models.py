"""Writes the configs of tiny models that a real engine runs: `python -m tests.tiny_models`.

Each is an architecture's own config with sizes that a CPU computes in milliseconds; weights are
the engine's to invent. They lie in `fixtures/tiny`, and a test holds them to this table.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "fixtures" / "tiny"
S, F = "sliding_attention", "full_attention"

COMMON: Final[Mapping[str, Any]] = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere2": {
        "architectures": ["Cohere2ForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": [S, S, S, F],
        "sliding_window": 128,
        "logit_scale": 1.0,
        "tie_word_embeddings": True,
    },
    "exaone_moe": {
        "architectures": ["ExaoneMoeForCausalLM"],
        "num_hidden_layers": 6,
        "layer_types": [S, S, F, S, S, F],
        "sliding_window": 128,
        "sliding_windows": [64, 128, 0, 64, 128, 0],
        "is_moe_layer": [False] * 6,
        "mlp_layer_types": ["dense"] * 6,
        "first_k_dense_replace": 6,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    },
    "mimo_v2_flash": {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "num_hidden_layers": 6,
        "head_dim": 64,
        "v_head_dim": 64,
        "swa_head_dim": 64,
        "swa_v_head_dim": 64,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1],
        "sliding_window": 128,
        "sliding_window_size": 128,
        "moe_layer_freq": [0] * 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "attention_bias": False,
        "layernorm_epsilon": 1e-5,
        "rope_theta": 1_000_000.0,
        "swa_rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "add_swa_attention_sink_bias": False,
        "add_full_attention_sink_bias": False,
        "attention_value_scale": 0.7,
    },
    "step3p5": {
        "architectures": ["Step3p5ForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_groups": 2,
        "layer_types": [F, S, S, S],
        "sliding_window": 128,
        "attention_other_setting": {
            "attention_type": S,
            "num_attention_heads": 6,
            "num_attention_groups": 2,
            "head_dim": 32,
        },
        "moe_layers_enum": "3",
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
        "yarn_only_types": [F],
        "rope_theta": [10_000.0] * 4,
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
        "use_head_wise_attn_gate": False,
        "zero_centered": False,
        "rms_norm_eps": 1e-5,
    },
    "gemma3n_text": {
        "architectures": ["Gemma3nForCausalLM"],
        "num_hidden_layers": 8,
        "layer_types": [S, S, S, F, S, S, S, F],
        "num_kv_shared_layers": 4,
        "sliding_window": 128,
        "intermediate_size": [128] * 8,
        "activation_sparsity_pattern": [0.0] * 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 1024,
        "laurel_rank": 8,
        "tie_word_embeddings": True,
    },
    "exaone4": {
        "architectures": ["Exaone4ForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": [S, S, S, F],
        "sliding_window": 128,
    },
}


def config_of(model_type: str) -> str:
    """Return the text of one config.json."""
    config = {"model_type": model_type, **COMMON, **OWN[model_type]}
    return json.dumps(config, indent=1) + "\n"


def main() -> None:
    """Write every config."""
    for model_type in OWN:
        folder = FOLDER / model_type
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config_of(model_type))


if __name__ == "__main__":
    main()
