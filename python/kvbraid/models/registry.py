"""The table of architectures: `model_type` -> its layer pattern, its sizes, its defaults.

To add an architecture, add one `Family` to attention.py or recurrent.py (or point its
`model_type` at an existing one here) and a fixture with its published config. A default belongs
in a family only if published checkpoints leave the field out and rely on their model class to
supply it; every use is reported as `assumed`.
"""

from collections.abc import Mapping
from typing import Final

from kvbraid.models import attention, named, recurrent
from kvbraid.models.family import Family

# fmt: off
_TYPES: Final[tuple[tuple[Family, tuple[str, ...]], ...]] = (
    (attention.DENSE, (
        "TeleFLM", "bailing_moe", "bailing_moe_v2", "cohere", "deepseek",
        "ernie4_5_moe", "exaone", "glm4", "glm4_moe", "hy_v3", "internlm2", "k2_horizon",
        "minicpm", "minimax_m2", "mixtral", "nemotron", "olmoe", "opt", "orion", "param2moe",
        "pangu_pro_moe", "phimoe", "qwen3_vl_moe_text",
        "qwen3_vl_text", "sarvam_moe", "solar", "stablelm", "step1",
    )),
    (attention.WINDOW_IF_SET, (
        "apertus", "arcee", "ernie4_5", "flex_olmo", "glm", "gpt_neox", "granite",
        "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "hunyuan_v1_dense",
        "hunyuan_v1_moe", "hyperclovax", "internlm3", "iquestcoder", "jais2", "llama",
        "ministral", "ministral3", "mistral", "mistral3", "nanbeige", "olmo", "olmo2", "phi",
        "phi3", "seed_oss", "starcoder2", "telechat3",
    )),
    (attention.WINDOW_IF_LISTED, ("laguna",)),
    (attention.ALWAYS_LISTED, ("cwm", "mellum", "vaultgemma")),
    (attention.WINDOW_BY_FLAG, (
        "mimo", "qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3",
    )),
    (attention.NO_WINDOW, ("qwen2_moe",)),
    (attention.WINDOW_OR_FULL_BY_FLAG, ("qwen3_moe",)),
    (attention.WINDOW_WITHOUT_ROTATION, ("smollm3",)),
    (attention.GEMMA, ("gemma",)),
    (attention.GEMMA2, ("gemma2",)),
    (attention.GEMMA3, ("gemma3", "gemma3_text")),
    (attention.GEMMA3N, ("gemma3n", "gemma3n_text")),
    (attention.GEMMA4, ("gemma4", "gemma4_text")),
    (attention.GPT_OSS, ("gpt_oss",)),
    (attention.COHERE2, ("cohere2", "cohere2_moe")),
    (attention.FOURTH_FULL, ("olmo3",)),
    (attention.AFMOE, ("afmoe",)),
    (attention.EXAONE4, ("exaone4",)),
    (attention.EXAONE_MOE, ("exaone_moe",)),
    (attention.PLAMO3, ("plamo3",)),
    (attention.PANGU, ("PanguEmbedded",)),
    (attention.LOOPED, ("iquestloopcoder",)),
    (attention.CYCLED, ("hrm_text",)),
    (attention.MUSE_GLIMMER, ("muse_glimmer", "muse_glimmer_text")),
    (attention.RNJ1, ("rnj1",)),
    (attention.LLAMA4, ("llama4", "llama4_text")),
    (attention.MINIMAX_M3, ("minimax_m3",)),
    (attention.MIMO_V2, ("mimo_v2", "mimo_v2_flash")),
    (attention.STEP3, ("step3p5", "step3p7")),
    (attention.MLA, (
        "axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4",
        "pangu_ultra_moe", "sarvam_mla",
    )),
    (attention.TWO_LATENTS, ("longcat_flash",)),
    (attention.UNCOMPRESSED, ("minicpm3",)),
    (attention.MLA_INDEXED, ("deepseek_v32", "glm_moe_dsa")),
    (attention.DEEPSEEK_V4, ("deepseek_v4",)),
    (attention.HUNYUAN_LARGE, ("hunyuan",)),
    (named.GPT, ("gpt2", "gpt-sw3", "gptj")),
    (named.BLOOM, ("bloom",)),
    (named.FALCON, ("falcon", "RefinedWeb", "RefinedWebModel")),
    (named.BIGCODE, ("gpt_bigcode",)),
    (named.CHATGLM, ("chatglm",)),
    (named.DBRX, ("dbrx",)),
    (named.TELECHAT, ("telechat",)),
    (named.ONE_HEAD, ("step3_text",)),
    (named.BLOCKS, ("nemotron-nas",)),
    (recurrent.GATED_DELTA, (
        "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
    )),
    (recurrent.OLMO_HYBRID, ("olmo_hybrid",)),
    (recurrent.KIMI_LINEAR, ("kimi_linear",)),
    (recurrent.BAILING_HYBRID, ("bailing_hybrid",)),
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
