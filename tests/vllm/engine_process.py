"""A real vLLM in its own process: it takes prompts and answers with its own count of cache hits.

`python engine_process.py` reads JSON lines from standard input: first the settings of the engine
(`{"model", "endpoint", "block_size", "num_blocks", "max_model_len", "retention", "scheduler",
"options", "is_async", "seeded_dtype"}`: our scheduler's options, and null for dummy weights), then
commands:
`{"prompts": [[...], ...], "max_tokens": n}`, `{"reset": true}`, or `{"tamper": {"prompt",
"max_tokens"}}`. Each is answered by one line: `{"ready": true}`, then `{"cached": tokens reused
per prompt, "outputs": [[...], ...], "published": messages sent so far}`, `{"reset": whether it was
done}`, or what `engine_tamper` says. Unless `scheduler` names a class of ours it
never imports kvbraid: what it says is the truth the tests compare with.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",  # Two threads on two cores spin against each other.
}
"""What the process must be started with (the hash seed is read when the interpreter starts)."""


def private_stdout() -> TextIO:
    """Keep standard output for answers; whatever the engine prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def start(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - vLLM exists only in .venv-vllm.
    from vllm import LLM
    from vllm.config import KVEventsConfig

    load_format, dtype = "dummy", settings["seeded_dtype"]
    if dtype is not None:
        load_format = import_module("seeded_weights").LOAD_FORMAT  # Beside this program.

    return LLM(
        model=settings["model"],
        load_format=load_format,
        dtype=dtype or "auto",
        enforce_eager=True,
        block_size=settings["block_size"],
        num_gpu_blocks_override=settings["num_blocks"],
        max_model_len=settings["max_model_len"],
        prefix_cache_retention_interval=settings["retention"],
        skip_tokenizer_init=not (Path(settings["model"]) / "tokenizer.json").exists(),
        max_num_batched_tokens=4_096,
        max_num_seqs=4,
        enable_prefix_caching=True,
        async_scheduling=settings["is_async"],
        scheduler_cls=settings["scheduler"],
        additional_config={"kvbraid": settings["options"]},
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=settings["endpoint"]
        ),
    )


def count_published() -> list[int]:
    """Count the engine's published messages in a one-element list, from now on."""
    from vllm.distributed.kv_events import ZmqEventPublisher

    count = [0]
    publish = ZmqEventPublisher.publish

    def counting(self: Any, events: Any) -> None:  # noqa: ANN401 - vLLM's own types.
        count[0] += 1
        publish(self, events)

    ZmqEventPublisher.publish = counting
    return count


def generate(engine: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - an LLM.
    from vllm import SamplingParams

    results = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in request["prompts"]],
        SamplingParams(
            max_tokens=request["max_tokens"], ignore_eos=True, temperature=0.0, detokenize=False
        ),
        use_tqdm=False,
    )
    return {
        "cached": [result.num_cached_tokens for result in results],
        "outputs": [list(result.outputs[0].token_ids) for result in results],
    }


def main() -> None:
    answers = private_stdout()
    published = count_published()
    engine = start(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        if "reset" in request:
            answer: dict[str, Any] = {"reset": engine.reset_prefix_cache()}
        elif "tamper" in request:
            answer = import_module("engine_tamper").run(engine, generate, request["tamper"])
        else:
            answer = generate(engine, request) | {"published": published[0]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
