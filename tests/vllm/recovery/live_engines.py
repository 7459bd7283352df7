"""Real vLLMs whose loads fail on demand, and how their answers compare with the right ones."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final

from tests.vllm.engine_process import ENVIRONMENT
from tests.vllm.live_engine import MODELS, LiveModel

ROOT: Final = Path(__file__).parents[3]
HYBRIDS: Final = [m for m in MODELS if m.folder in {"gemma3", "gptoss", "llama4", "qwen3next"}]
TAIL: Final = 8
"""Tokens of a prompt after those that are loaded."""
MAX_TOKENS: Final = 12
NEAR_TIE: Final = 1e-3
FORMS: Final = ("places", "pairs", "flat")


class Program:
    """The running program; a command at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answer(self, prompts: list[list[int]], loads: Any = None) -> dict[str, Any]:  # noqa: ANN401
        return self.ask(prompts=prompts, max_tokens=MAX_TOKENS, loads=loads)


@contextmanager
def running(
    model: LiveModel,
    scheduler: str | None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[tuple[Program, int]]:
    """Start a model's engine; yield it with the number of its groups, and stop it at the end.

    `options` are those of recovery.
    """
    cache = str(Path(sys.prefix) / "engine-cache")
    environment = os.environ | ENVIRONMENT
    environment |= {"VLLM_CACHE_ROOT": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.vllm.recovery.live_program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if scheduler else subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            program = Program(process)
            settings = {
                "model": str(model.path),
                "block_size": model.block_size,
                "num_blocks": model.num_blocks,
                "max_model_len": model.max_model_len,
                "dtype": model.dtype,
                "scheduler": scheduler,
                "options": dict(options),
            }
            yield program, program.ask(**settings)["groups"]
        finally:
            process.kill()


def tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(10, 250) for _ in range(count)]


def compare(answer: dict[str, Any], truth: dict[str, Any], counts: Counter[str]) -> None:
    """Count outputs that differ: a tie is a token whose two best logits are almost the same."""
    for got, expected, gaps in zip(
        answer["outputs"], truth["outputs"], truth["gaps"], strict=True
    ):
        differing = [
            i for i, pair in enumerate(zip(got, expected, strict=True)) if len({*pair}) > 1
        ]
        if differing:
            is_tie = gaps[differing[0]] < NEAR_TIE
            counts["near_ties" if is_tie else "mismatches"] += 1
            if not is_tie:
                counts[f"token {differing[0]}, best logits {gaps[differing[0]]:.4f} apart"] += 1
