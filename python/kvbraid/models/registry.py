"""The table of architectures: `model_type` -> its layer pattern, its sizes, its defaults.

To add an architecture, add one `Family` to attention.py or recurrent.py (or point its
`model_type` at an existing one here) and a fixture with its published config. A default belongs
into a family only where published checkpoints leave the field out and rely on their model class
to fill it in; every use is reported as `assumed`.
"""

from collections.abc import Mapping
from typing import Final

from kvbraid.models import attention, recurrent
from kvbraid.models.family import Family

# fmt: off
_TYPES: Final[tuple[tuple[Family, tuple[str, ...]], ...]] = (
    (attention.DENSE, (
        "llama", "cohere", "olmo", "olmo2", "olmoe", "granite", "granitemoe", "glm", "glm4",
        "glm4_moe", "minimax_m2", "exaone", "internlm2", "internlm3", "seed_oss", "ernie4_5",
        "ernie4_5_moe", "phi", "stablelm", "nemotron", "arcee", "apertus",
    )),
    (attention.WINDOW_IF_SET, (
        "mistral", "mistral3", "mixtral", "ministral", "ministral3", "phi3", "phimoe",
        "starcoder2",
    )),
    (attention.WINDOW_BY_FLAG, (
        "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text",
        "qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "smollm3",
    )),
    (attention.GEMMA, ("gemma",)),
    (attention.GEMMA2, ("gemma2",)),
    (attention.GEMMA3, ("gemma3", "gemma3_text")),
    (attention.GEMMA3N, ("gemma3n", "gemma3n_text")),
    (attention.GEMMA4, ("gemma4", "gemma4_text")),
    (attention.GPT_OSS, ("gpt_oss",)),
    (attention.COHERE2, ("cohere2",)),
    (attention.FOURTH_FULL, ("olmo3",)),
    (attention.EXAONE4, ("exaone4",)),
    (attention.LLAMA4, ("llama4", "llama4_text")),
    (attention.MINIMAX_M3, ("minimax_m3",)),
    (attention.MIMO_V2, ("mimo_v2_flash",)),
    (attention.STEP3, ("step3p5", "step3p7")),
    (attention.MLA, ("deepseek_v2", "deepseek_v3", "kimi_k2")),
    (attention.MLA_INDEXED, ("deepseek_v32", "glm_moe_dsa")),
    (attention.DEEPSEEK_V4, ("deepseek_v4",)),
    (attention.HUNYUAN, ("hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe")),
    (recurrent.GATED_DELTA, (
        "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
    )),
    (recurrent.KIMI_LINEAR, ("kimi_linear",)),
    (recurrent.LIGHTNING, (
        "minimax", "minimax_text_01", "minimax_m1", "MiniMaxText01", "MiniMaxM1",
    )),
    (recurrent.JAMBA, ("jamba",)),
    (recurrent.NEMOTRON_H, ("nemotron_h",)),
    (recurrent.BAMBA, ("bamba", "granitemoehybrid")),
    (recurrent.FALCON_H1, ("falcon_h1",)),
    (recurrent.ZAMBA2, ("zamba2",)),
    (recurrent.PURE_MAMBA, ("mamba", "falcon_mamba")),
    (recurrent.PURE_MAMBA2, ("mamba2",)),
    (recurrent.LFM2, ("lfm2", "lfm2_moe")),
    (recurrent.PHI4FLASH, ("phi4flash",)),
)
# fmt: on

FAMILIES: Final[Mapping[str, Family]] = {
    model_type: family for family, model_types in _TYPES for model_type in model_types
}
