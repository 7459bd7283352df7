"""A real vLLM that offloads blocks, in its own process.

`python -m tests.vllm.offload.live_program` reads JSON lines from standard input: the settings of
the engine (`{"model", "overrides", "block_size", "num_blocks", "max_model_len", "dtype",
"connector", "extra", "options", "layout", "ranks"}`: `connector` is the class, or null; `extra`
what it is configured with; `options` our scheduler's; of several `ranks` each is a process of its
own), then commands.
`{"prompts", "max_tokens"}` answers prompts together: `{"outputs", "gaps": between the two best
logits of each token, "cached": tokens that were not computed, "preempted": so far, "predicted":
[lower, upper, expected] of each prompt, by an index that hears our connector's engine}`.
`{"drain": true}` steps until nothing moves: `{"steps": count}`.
`{"forget": true}` makes the device forget what it has cached; tiers keep what they have, and our
connector's engine goes on until it has told that.
`{"counts": true}` tells what was seen of moving blocks: as `watching` says, and the connector's.
`{"corrupt": [group, "first", "middle" or "last"]}` has a block of the next load overwritten.
`{"fault": name}` lets calls of the disk tier fail as `faulty_disk` says, null: no more.
`{"records": {...}}` tells what records must hold that another engine has stored; the answer has
all of them.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec

from tests.tier_predictions import Listener
from tests.vllm.engine_process import private_stdout
from tests.vllm.live_engine import ENGINE

SCHEDULER = "kvbraid.integrations.vllm.KvbraidScheduler"
MODULES = {
    "OffloadingConnector": None,
    "OffloadConnector": "kvbraid.integrations.vllm.offload",
}


def use_layout(name: str) -> None:
    """Have the CPU's attention take another layout, which it can read as well: test only."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layouts = (KVCacheLayout[name], KVCacheLayout.LBHNC)
    patch.object(CPUAttentionBackend, "supported_kv_cache_layouts", lambda: layouts).start()
    os.environ["VLLM_KV_CACHE_LAYOUT"] = name


def start(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - vLLM exists only in .venv-vllm.
    if settings["layout"] != "LBHNC":
        use_layout(settings["layout"])
    from vllm import LLM
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.model_executor.models import registry

    from tests.vllm.offload import seeded_worker

    registry._run_in_subprocess = lambda inspect: inspect()  # Another would import all again.
    transfer = None
    if settings["connector"] is not None:
        transfer = KVTransferConfig(
            kv_connector=settings["connector"],
            kv_connector_module_path=MODULES[settings["connector"]],
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=settings["extra"],
        )
    return LLM(
        model=settings["model"],
        hf_overrides=settings["overrides"],
        load_format=seeded_worker.LOAD_FORMAT,
        worker_extension_cls=f"{seeded_worker.__name__}.SeededWorker",
        dtype=settings["dtype"],
        enforce_eager=True,
        block_size=settings["block_size"],
        num_gpu_blocks_override=settings["num_blocks"],
        max_model_len=settings["max_model_len"],
        skip_tokenizer_init=not (Path(settings["model"]) / "tokenizer.json").exists(),
        max_num_batched_tokens=4_096,
        max_num_seqs=4,
        enable_prefix_caching=True,
        async_scheduling=False,
        scheduler_cls=SCHEDULER,
        additional_config={"kvbraid": settings["options"]},
        kv_transfer_config=transfer,
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=settings["connector"] == "OffloadConnector", publisher="null"
        ),
        disable_log_stats=False,
        tensor_parallel_size=settings["ranks"],
        distributed_executor_backend="uni" if settings["ranks"] == 1 else "mp",
    )


class Program:
    """The engine."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = start(settings)
        self._core = self._engine.llm_engine.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._num_preempted = 0
        preempt = self._scheduler._preempt_request

        def counting(*given: Any, **more: Any) -> None:  # noqa: ANN401 - vLLM's own types.
            self._num_preempted += 1
            preempt(*given, **more)

        self._scheduler._preempt_request = counting
        self._watch: Any = None
        self._disk: Any = None
        self._listener: Listener | None = None
        if settings["connector"] == "OffloadConnector":
            self._listener = self._listening()
        if settings["connector"] == "OffloadConnector" and settings["ranks"] == 1:
            self._watch = self._watched(settings["dtype"])

    def _watched(self, dtype: str) -> Any:  # noqa: ANN401 - vLLM's own types.
        import torch
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        from tests.vllm.offload.faulty_disk import FaultyDisk
        from tests.vllm.offload.watching import Watch

        side = get_kv_transfer_group()._worker
        if side._stores:
            self._disk = FaultyDisk(side._stores["disk"])
        return Watch(self._engine, side._worker, getattr(torch, dtype))

    def _listening(self) -> Listener:
        topology = self._scheduler.kv_cache_manager.cache.config.topology
        listener, encode = Listener(topology, ENGINE), msgspec.msgpack.encode
        self._scheduler.kv_event_publisher = SimpleNamespace(
            publish=lambda batch: listener.hear(encode(batch)), shutdown=lambda: None
        )
        return listener

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams

        rows = []
        if self._listener:
            rows = [self._listener.row(prompt) for prompt in request["prompts"]]
        results = self._engine.generate(
            [{"prompt_token_ids": prompt} for prompt in request["prompts"]],
            SamplingParams(
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                temperature=0,
                detokenize=False,
                logprobs=2,
            ),
            use_tqdm=False,
        )
        gaps = []
        for result in results:
            best = [
                sorted((each.logprob for each in token.values()), reverse=True)
                for token in result.outputs[0].logprobs
            ]
            gaps.append([first - second for first, second, *_ in best])
        return {
            "outputs": [list(result.outputs[0].token_ids) for result in results],
            "gaps": gaps,
            "cached": [result.num_cached_tokens for result in results],
            "preempted": self._num_preempted,
            "predicted": [[row.lower, row.upper, row.expected] for row in rows],
        }

    def drain(self) -> dict[str, int]:
        steps = 0
        while self._scheduler.has_requests():
            self._core.step()
            steps += 1
        return {"steps": steps}

    def forget(self) -> dict[str, bool]:
        forgot = self._engine.reset_prefix_cache()
        if self._listener:
            self.drain()
        return {"forgot": forgot}

    def counts(self) -> dict[str, Any]:
        if "tests.vllm.offload.rival" in sys.modules:
            return {"seen": sys.modules["tests.vllm.offload.rival"].NUM_LOADED}
        offload = self._scheduler.connector._decisions.offload
        offload.check_integrity()
        self._scheduler.kv_cache_manager.cache.debug.check_integrity(offload.held_blocks)
        counts = offload.counts
        return {
            "seen": dict(self._watch.counts) if self._watch else {},
            "hits": dict(counts.hits),
            "drops": {f"{tier} {why}": n for (tier, why), n in counts.drops.items()},
            "blocks": offload.num_blocks(),
            "pending": offload.num_pending,
            "declined": counts.num_declined,
            "deadlines": counts.num_deadlines,
        }

    def corrupt(self, group: int, where: str) -> dict[str, Any]:
        self._watch.corrupt = (group, where)
        return {}

    def records(self, known: dict[str, str]) -> dict[str, Any]:
        self._watch.records |= {bytes.fromhex(key): digest for key, digest in known.items()}
        return {key.hex(): digest for key, digest in self._watch.records.items()}

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        if "prompts" in request:
            return self.answer(request)
        if "corrupt" in request:
            return self.corrupt(*request["corrupt"])
        if "fault" in request:
            self._disk.fault = request["fault"]
            return {}
        if "records" in request:
            return self.records(request["records"])
        (name,) = request
        commands: dict[str, Any] = {
            "drain": self.drain,
            "forget": self.forget,
            "counts": self.counts,
        }
        said: dict[str, Any] = commands[name]()
        return said


def main() -> None:
    answers = private_stdout()
    program = Program(json.loads(sys.stdin.readline()))
    groups = len(program._scheduler.kv_cache_config.kv_cache_groups)
    print(json.dumps({"groups": groups}), file=answers)
    for line in sys.stdin:
        print(json.dumps(program.do(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
