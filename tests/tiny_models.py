"""Writes the tiny models that a real engine runs: `python -m tests.tiny_models`.

Each is an architecture's own config with sizes that a CPU computes in milliseconds; the engine
invents the weights. They are in `fixtures/tiny`, and a test compares them with these tables.
Prompts are token ids; the tokenizer is for a server, which does not start without one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

FOLDER: Final = Path(__file__).parent / "fixtures" / "tiny"
TOKENIZER: Final = "tokenizer"
S, F = "sliding_attention", "full_attention"
C, L = "chunked_attention", "linear_attention"

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

Configs: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Name of the folder -> what the config has beside, or instead of, COMMON."""

ARCHITECTURES: Final[Configs] = {
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


ONE_HEAD: Final = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
}

MAIN: Final[Configs] = {
    "gemma3": {
        **ONE_HEAD,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "sliding_window": 256,
        "layer_types": [S, S, S, S, S, F],
        "rope_parameters": {
            F: {"rope_type": "default", "rope_theta": 1_000_000.0},
            S: {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "gemma4": {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [S, S, F, S, S, F],
        "sliding_window": 128,
        "global_head_dim": 64,
        "num_global_key_value_heads": 2,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 1024,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            F: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            S: {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "gptoss": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 6,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "sliding_window": 128,
        "layer_types": [S, F, S, F, S, F],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "initial_context_length": 4096,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    "lfm2": {
        **ONE_HEAD,
        "architectures": ["Lfm2ForCausalLM"],
        "num_hidden_layers": 6,
        "layer_types": ["conv", "conv", F, "conv", "conv", F],
        "full_attn_idxs": [2, 5],
        "conv_dim": 64,
        "conv_dim_out": 64,
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    "llama4": {
        **ONE_HEAD,
        "model_type": "llama4_text",
        "architectures": ["Llama4ForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": [C, C, C, F],
        "attention_chunk_size": 256,
        "no_rope_layers": [1, 1, 1, 0],
        "intermediate_size_mlp": 128,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "moe_layers": [1, 3],
        "attention_bias": False,
        "rope_theta": 500_000.0,
    },
    "mistral_swa": {
        **ONE_HEAD,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "num_hidden_layers": 4,
        "sliding_window": 256,
        "rope_theta": 10_000.0,
    },
    "qwen3next": {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": [L, L, L, F],
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000.0,
        "attention_bias": False,
    },
}
"""What most live tests run; ARCHITECTURES have a live test of their own."""


def json_text(value: Mapping[str, Any], indent: int | None = 1) -> str:
    return json.dumps(value, indent=indent) + "\n"


def vocabulary() -> dict[str, int]:
    size = int(COMMON["vocab_size"])
    return {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", "<unk>"])} | {
        f"w{n}": n for n in range(4, size)
    }


def files() -> dict[str, str]:
    """Return the text of every file, by its path within the folder."""
    texts = {
        f"{name}/config.json": json_text({"model_type": name, **COMMON, **own})
        for name, own in {**MAIN, **ARCHITECTURES}.items()
    }
    model = {"type": "WordLevel", "vocab": vocabulary(), "unk_token": "<unk>"}
    absent = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    words = {"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    texts[f"{TOKENIZER}/tokenizer.json"] = json_text(
        {"version": "1.0", **absent, **words}, indent=None
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    texts[f"{TOKENIZER}/tokenizer_config.json"] = json_text(
        {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    )
    return texts


def main() -> None:
    """Write every file."""
    for path, text in files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text)


if __name__ == "__main__":
    main()
