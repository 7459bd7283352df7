"""Real vLLMs that offload blocks: ours, the rival, and one whose device never has to forget."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.tiny_models import F, L, S
from tests.vllm.engine_process import ENVIRONMENT
from tests.vllm.live_engine import MODELS, LiveModel

ROOT: Final = Path(__file__).parents[3]
MAX_TOKENS: Final = 12
HOST_BYTES: Final = 200_000_000
OURS: Final = "OffloadConnector"
RIVAL: Final = "OffloadingConnector"
RIVAL_EXTRA: Final = {
    "spec_name": "CopyingSpec",
    "spec_module_path": "tests.vllm.offload.rival",
    "cpu_bytes_to_use": HOST_BYTES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadModel:
    """A model, what its config has instead, and pools: one that evicts, one that does not."""

    model: LiveModel
    num_blocks: int
    enough_blocks: int
    overrides: Mapping[str, Any] = field(default_factory=dict)


_LIVE: Final = {model.folder: model for model in MODELS}
OFFLOAD_MODELS: Final = (
    OffloadModel(model=_LIVE["gptoss"], num_blocks=110, enough_blocks=3_000),
    OffloadModel(
        model=_LIVE["gemma3"],
        num_blocks=400,
        enough_blocks=8_000,
        overrides={"num_hidden_layers": 14, "layer_types": [*[S] * 6, F, *[S] * 6, F]},
    ),
    OffloadModel(
        model=_LIVE["qwen3next"],
        num_blocks=80,
        enough_blocks=2_000,
        overrides={"num_hidden_layers": 8, "layer_types": [L, L, L, F] * 2},
    ),
)


class Engine:
    """A running program; a command at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.num_groups = 0

    def ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answer(self, *prompts: list[int], max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
        """Answer prompts together, and let everything arrive that moves."""
        said = self.ask(prompts=prompts, max_tokens=max_tokens)
        self.ask(drain=True)
        return said

    def forget(self) -> None:
        """Have the device forget what it has cached."""
        assert self.ask(forget=True)["forgot"]


@contextmanager
def running(
    which: OffloadModel,
    connector: str | None,
    extra: Mapping[str, Any] = MappingProxyType({}),
    *,
    layout: str = "LBHNC",
    ranks: int = 1,
) -> Iterator[Engine]:
    """Start a model's engine with a connector, or with none and enough blocks; stop it then."""
    cache = str(Path(sys.prefix) / "engine-cache")
    environment = os.environ | ENVIRONMENT
    environment |= {"VLLM_CACHE_ROOT": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
    if ranks > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # Else a rank needs a NUMA node.
    model = which.model
    with subprocess.Popen(
        [sys.executable, "-m", "tests.vllm.offload.live_program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            engine = Engine(process)
            engine.num_groups = engine.ask(
                model=str(model.path),
                overrides=dict(which.overrides),
                block_size=model.block_size,
                num_blocks=which.num_blocks if connector else which.enough_blocks,
                max_model_len=model.max_model_len,
                dtype=model.dtype,
                connector=connector,
                extra=dict(extra),
                options={},
                layout=layout,
                ranks=ranks,
            )["groups"]
            yield engine
        finally:
            process.kill()
