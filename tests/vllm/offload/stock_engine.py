"""A real vLLM with its own scheduler and `OffloadingConnector`, and our disk below: one process.

`python -m tests.vllm.offload.stock_engine DIRECTORY MODEL` reads a JSON list of prompts from
standard input, answers them one at a time, stops, and prints
`{"outputs", "cached": tokens that were not computed, "blocks": "job status" -> count}`.
vLLM has no worker of its tiers for a CPU: `RowsSpec` gives it one, whose copies end at once.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from tests.vllm.engine_process import private_stdout


def start(directory: str, model: str) -> Any:  # noqa: ANN401 - vLLM exists only in .venv-vllm.
    from vllm import LLM
    from vllm.config import KVTransferConfig

    from tests.vllm import seeded_weights
    from tests.vllm.live_engine import MODELS

    (live,) = (each for each in MODELS if each.folder == model)
    return LLM(
        model=str(live.path),
        load_format=seeded_weights.LOAD_FORMAT,
        dtype=live.dtype,
        enforce_eager=True,
        block_size=live.block_size,
        num_gpu_blocks_override=live.num_blocks,
        max_model_len=live.max_model_len,
        skip_tokenizer_init=not (live.path / "tokenizer.json").exists(),
        max_num_batched_tokens=4_096,
        max_num_seqs=4,
        enable_prefix_caching=True,
        async_scheduling=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "RowsSpec",
                "spec_module_path": "tests.vllm.offload.rows_worker",
                "cpu_bytes_to_use": 1 << 26,
                "secondary_tiers": [
                    {
                        "type": "KvbraidDiskTier",
                        "module_path": "kvbraid.integrations.vllm",
                        "disk_directory": directory,
                        "disk_bytes": 1 << 28,
                    }
                ],
            },
        ),
    )


def blocks(tier: Any) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - vLLM's own type.
    stats = tier.get_stats().data["data"]
    for labels, count in stats.get("kvbraid_disk_blocks", {}).items():
        yield " ".join(labels), count


def main() -> None:
    answers = private_stdout()
    engine = start(*sys.argv[1:])
    from vllm import SamplingParams

    core = engine.llm_engine.engine_core.engine_core
    (tier,) = core.scheduler.connector.connector_scheduler.manager.secondary_tiers
    tier.get_stats = lambda: None  # vLLM would take them, step by step.
    asked = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0, detokenize=False)
    results = [
        engine.generate({"prompt_token_ids": prompt}, asked, use_tqdm=False)[0]
        for prompt in json.load(sys.stdin)
    ]
    while core.scheduler.has_requests():
        core.step()
    del tier.get_stats
    said = {
        "outputs": [list(result.outputs[0].token_ids) for result in results],
        "cached": [result.num_cached_tokens for result in results],
        "blocks": dict(blocks(tier)),
    }
    core.shutdown()
    print(json.dumps(said), file=answers)


if __name__ == "__main__":
    main()
