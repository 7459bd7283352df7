"""A real vLLM whose loads fail on demand, in its own process.

`python -m tests.vllm.recovery.live_program` reads JSON lines from standard input: the settings of
the engine (`{"model", "block_size", "num_blocks", "max_model_len", "dtype", "scheduler",
"options"}`), then commands.
`{"keep": tokens}` computes a document and keeps what resuming after it needs; answered by
`{"kept": tokens}`. With `"adds": true`, it is a part of the last document, and kept with it.
`{"prompts", "max_tokens", "loads": null or {"is_async", "is_whole", "fault"}}` answers prompts
together from an empty cache, or with `"is_warm"` from what the last ones left:
`{"outputs", "gaps": between the two best logits of each token, "ends": how each ended, "cached",
"failed": loads so far, "recomputed" and "unused": tokens so far}`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.vllm.engine_process import private_stdout


def start(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - vLLM exists only in .venv-vllm.
    from vllm import LLM
    from vllm.config import KVTransferConfig

    from tests.vllm import seeded_weights
    from tests.vllm.recovery import failing_connector

    return LLM(
        model=settings["model"],
        load_format=seeded_weights.LOAD_FORMAT,
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
        scheduler_cls=settings["scheduler"],
        kv_transfer_config=KVTransferConfig(
            kv_connector="FailingConnector",
            kv_connector_module_path=failing_connector.__name__,
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "kvbraid_recovery": {"tier_cooldown_s": 0} | settings["options"]
            },
        ),
    )


class Program:
    """The engine, and what its connector keeps."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = start(settings)
        import torch

        from tests.vllm.engine_tamper import Tamper
        from tests.vllm.recovery.failing_connector import HOST

        self._core = self._engine.llm_engine.engine_core.engine_core
        self._manager = self._core.scheduler.kv_cache_manager
        tamper = Tamper(self._engine)
        self._groups = tamper.num_groups
        HOST.pages = tamper._pages
        HOST.dtype = getattr(torch, settings["dtype"])
        self._host = HOST
        self._pages = tamper._pages

    def keep(self, tokens: list[int], *, adds: bool = False) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        from tests.vllm.recovery.failing_connector import Record

        self._host.loads = False
        assert self._engine.reset_prefix_cache()
        self._generate([tokens], 1)
        request = Request(
            request_id="kept",
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=self._core.request_block_hasher,
        )
        blocks, hit, *_ = self._manager.get_computed_blocks(request)
        kept: list[dict[int, Any]] = [
            {
                position: [page.clone() for page in self._pages(group, block)]
                for position, block in enumerate(ids)
                if block
            }
            for group, ids in enumerate(blocks.get_block_ids())
        ]
        self._manager.free(request)
        if adds:
            for own, more in zip(self._host.records[-1].blocks, kept, strict=True):
                own.update(more)
        else:
            self._host.records.append(Record(list(tokens[:hit]), kept))
        return {"kept": hit, "blocks": [len(group) for group in kept]}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        from tests.vllm.recovery.failing_connector import Fault

        loads = request["loads"]
        self._host.loads = loads is not None
        if loads is not None:
            self._host.is_async = loads["is_async"]
            self._host.is_whole = loads.get("is_whole", False)
            self._host.fault = Fault(**loads["fault"]) if loads["fault"] else None
        if not request.get("is_warm"):
            assert self._engine.reset_prefix_cache()
        said = self._generate(request["prompts"], request["max_tokens"])
        recovery = getattr(self._core.scheduler, "recovery", None)
        counts = recovery.counts if recovery is not None else None
        return said | {
            "failed": self._host.num_failed,
            "recomputed": counts.recomputed_tokens if counts else 0,
            "unused": counts.unused_tokens if counts else 0,
        }

    def _generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        from vllm import SamplingParams

        results = self._engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, temperature=0, detokenize=False, logprobs=2
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
            "ends": [result.outputs[0].finish_reason for result in results],
            "cached": [result.num_cached_tokens for result in results],
        }


def main() -> None:
    answers = private_stdout()
    program = Program(json.loads(sys.stdin.readline()))
    print(json.dumps({"groups": program._groups}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        if "keep" in request:
            said = program.keep(request["keep"], adds=request.get("adds", False))
        else:
            said = program.answer(request)
        print(json.dumps(said), file=answers)


if __name__ == "__main__":
    main()
