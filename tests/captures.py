"""Where recorded lives of real engines are, and which of them a cache can be held to."""

import os
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
FIXTURES: Final = ROOT / "tests" / "fixtures" / "captures"
"""The first operations of some captures."""

WHOLE: Final = Path(os.environ.get("KVBRAID_CAPTURES", ROOT.parent / "shared" / "captures"))
"""All of them, where they lie beside the repository: the only material that a clone may lack."""

SGLANG_FIXTURES: Final = FIXTURES / "sglang"
SGLANG_WHOLE: Final = Path(
    os.environ.get("KVBRAID_SGLANG_CAPTURES", ROOT.parent / "shared" / "sglang")
)
"""Captures of SGLang 0.5.23: first operations (`python -m tests.cut_capture`), and whole ones."""

LIVES: Final = (
    "gemma2",
    "gemma3",
    "gptoss",
    "llama4",
    "mistral_swa",
    "qwen3_lora",
    "qwen3next",
    "sched_a_gemma3",
    "sched_b_gptoss_dense",
    "sched_c_mamba_align",
    "sched_c_mamba_align_fine",
    "sched_d_llama4",
    "sched_e_swa_only",
    "sched_f_hetero",
    "sched_g_bs_full16_swa64",
    "sched_h_eagle_dense",
    "sched_i_full",
)
"""All captures of one request at a time in the usual report mode."""


def captures_in(*roots: Path) -> list[Path]:
    """The captures that lie directly in these folders, as far as the folders exist."""
    return sorted(config.parent for root in roots for config in root.glob("*/config.json"))


def whole(name: str) -> Path:
    """The folder of a whole capture."""
    if not (WHOLE / name).is_dir():
        pytest.skip("needs ../shared/captures")
    return WHOLE / name


def folder_of(name: str) -> Path:
    """The whole capture, else its first operations."""
    is_whole = (WHOLE / name).is_dir() or not (FIXTURES / name).is_dir()
    return whole(name) if is_whole else FIXTURES / name
