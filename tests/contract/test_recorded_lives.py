"""Recorded lives of real engines over our cache: every message of theirs, evictions included.

Whole captures where they lie beside the repository, the first operations of some otherwise.
"""

import os
from pathlib import Path
from typing import Final

import pytest
from kvbraid.cache.manager import CacheManager

from tests.contract.recorded_life import assert_is_lived_again

ROOT: Final = Path(__file__).resolve().parents[2]
FIXTURES: Final = ROOT / "tests" / "fixtures" / "captures"
WHOLE: Final = Path(os.environ.get("KVBRAID_CAPTURES", ROOT.parent / "shared" / "captures"))

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


def folder_of(name: str) -> Path:
    """The whole capture, else its first operations."""
    for folder in (WHOLE / name, FIXTURES / name):
        if folder.is_dir():
            return folder
    pytest.skip("needs ../shared/captures")


@pytest.mark.parametrize("name", LIVES)
def test_every_message_of_a_recorded_life_is_ours(name: str) -> None:
    assert assert_is_lived_again(folder_of(name), CacheManager) > 0
