"""vLLM's own connector over our disk, in live engines, one after the other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.vllm.engine_process import ENVIRONMENT

ROOT = Path(__file__).parents[3]
NUM_TOKENS = 900


def answers(directory: Path, model: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Start an engine, let it answer, and stop it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.offload.stock_engine", str(directory), model],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.timeout(900)
def test_an_engine_serves_what_another_has_stored(tmp_path: Path) -> None:
    random = Random(0)
    prompts = [[random.randrange(10, 500) for _ in range(NUM_TOKENS)] for _ in range(2)]
    first = answers(tmp_path, "gptoss", prompts)
    second = answers(tmp_path, "gptoss", prompts)
    assert first["cached"] == [0, 0]
    assert second["cached"] == [896, 896]
    assert second["outputs"] == first["outputs"]
    assert set(first["blocks"]) == {"write ok"}
    assert second["blocks"]["promote ok"] > 0
    assert set(second["blocks"]) <= {"promote ok", "write ok"}
