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
from tests.vllm.soak import LIVE_TIMEOUT

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


@pytest.mark.timeout(LIVE_TIMEOUT)
def test_an_engine_serves_what_another_has_stored_but_for_what_is_damaged(tmp_path: Path) -> None:
    random = Random(0)
    prompts = [[random.randrange(10, 500) for _ in range(NUM_TOKENS)] for _ in range(2)]
    first = answers(tmp_path, "gptoss", prompts)
    assert first["cached"] == [0, 0]
    assert set(first["blocks"]) == {"write ok"}
    second = answers(tmp_path, "gptoss", prompts)
    assert second["cached"] == [896, 896]
    assert second["blocks"] == {"promote ok": first["blocks"]["write ok"]}
    victim = min(tmp_path.glob("*/*/*-*-*"))
    damaged = bytearray(victim.read_bytes())
    damaged[5_000] ^= 1
    victim.write_bytes(damaged)
    third = answers(tmp_path, "gptoss", prompts)
    assert sorted(third["cached"])[0] < 896 == sorted(third["cached"])[1]
    assert third["blocks"]["promote corrupt"] == 1
    assert first["outputs"] == second["outputs"] == third["outputs"]
