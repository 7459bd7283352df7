"""The memory of running engines as our plan of it: a real vLLM for each line, in one process.

`python engine_memory.py` reads JSON lines from standard input, `{"model": folder, "block_size": n,
"memory_bytes": n, "state_dtype": of matrices}`, and answers each by one line: `{"plan": of the
config that a scheduler has and the views that connectors get, "is_worker_plan": whether the
worker's own config gives the same, "missed": bytes, "foreign": bytes, "memory_bytes": of the
allocation}`.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.vllm.engine_process import private_stdout


def described(settings: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, and describe the memory that it allocated."""
    from kvbraid.layout import from_engine, to_json
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from tests.unit.layout.engine_fakes import colours
    from tests.vllm.engine_allocations import as_bytes

    views: dict[str, Any] = {}
    make_views = GPUModelRunner.initialize_kv_cache_tensors

    def keeping(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - vLLM's own types.
        views.update(made := make_views(*arguments, **options))
        return made

    with patch.object(GPUModelRunner, "initialize_kv_cache_tensors", keeping):
        engine = LLM(
            model=settings["model"],
            load_format="dummy",
            enforce_eager=True,
            block_size=settings["block_size"],
            kv_cache_memory_bytes=settings["memory_bytes"],
            max_model_len=256,
            skip_tokenizer_init=not (Path(settings["model"]) / "tokenizer.json").exists(),
            max_num_batched_tokens=256,
            max_num_seqs=1,
            mamba_ssm_cache_dtype=settings["state_dtype"],
            enable_prefix_caching=True,
        )
    core = engine.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    plan = from_engine(core.scheduler.kv_cache_config, views)
    missed, foreign = colours(plan, *as_bytes(views))
    answer = {
        "plan": to_json(plan),
        "is_worker_plan": plan == from_engine(runner.kv_cache_config, views),
        "missed": missed,
        "foreign": foreign,
        "memory_bytes": next(iter(views.values())).untyped_storage().nbytes(),
    }
    views.clear()
    del engine, core, runner
    gc.collect()
    cleanup_dist_env_and_memory()
    return answer


def main() -> None:
    from vllm.model_executor.models import registry

    answers = private_stdout()
    registry._run_in_subprocess = lambda inspect: inspect()  # Another would import all again.
    for line in sys.stdin:
        print(json.dumps(described(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
