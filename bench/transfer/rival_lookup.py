"""The scheduler's side of vLLM's `OffloadingConnector` over its own index of host memory.

It is driven as the connector drives it: a request is announced, then asked for. Only what a
look-up reads of the engine's configuration is given. Import this module only in the vLLM
environment.
"""

import warnings
from types import SimpleNamespace
from typing import Any, Final

from bench.cache.rival import Rival, new_request
from bench.cache.side import BLOCK, Groups

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
        OffloadingConnectorScheduler,
    )
    from vllm.v1.kv_offload.base import ReqContext, make_offload_key
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

ONE_WORKER: Final[dict[str, Any]] = {
    "rank": 0,
    "world_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "pcp_size": 1,
    "dcp_size": 1,
    "data_parallel_index": 0,
    "data_parallel_size": 1,
    "data_parallel_rank_local": None,
    "is_parallelism_agnostic": False,
}
ENGINE: Final = SimpleNamespace(
    cache_config=SimpleNamespace(prefix_cache_retention_interval=None, enable_prefix_caching=True),
    parallel_config=SimpleNamespace(world_size=1, decode_context_parallel_size=1),
    speculative_config=None,
)


class RivalOffloading:
    """vLLM's look-up of one prompt, all of whose blocks are in host memory."""

    def __init__(self, groups: Groups, tokens: list[int], num_pool_tokens: int) -> None:
        rival = Rival(groups, 2)
        self._tokens, self._num_pool_tokens = tokens, num_pool_tokens
        self._numbers = 0
        layers = [OffloadingGroupConfig(BLOCK, (f"layer{n}",), n) for n in range(len(groups))]
        spec = CPUOffloadingSpec(
            OffloadingConfig(
                groups=tuple(layers),
                worker_kv_bytes_per_block=4096,
                enable_kv_cache_events=False,
                extra_config={"cpu_bytes_to_use": 4096 * len(groups) * len(tokens)},
                engine_id="bench",
                model=OffloadingModelConfig("bench", "bfloat16"),
                cache=OffloadingCacheConfig(BLOCK, 1),
                parallel=OffloadingParallelConfig(**ONE_WORKER),
            )
        )
        self.scheduler = OffloadingConnectorScheduler(spec, ENGINE, rival.manager.kv_cache_config)
        context = ReqContext(req_id="store", kv_transfer_params=None)
        hashes = new_request(0, tokens).block_hashes
        keys = [make_offload_key(each, group) for group in range(len(groups)) for each in hashes]
        self.scheduler.manager.on_new_request(context)
        self.scheduler.manager.prepare_store(keys, context)
        self.scheduler.manager.complete_store(keys, context)

    def new(self) -> Any:  # noqa: ANN401 - the engine's request.
        """Return a request that the connector does not know yet; it has its hashes."""
        self._numbers += 1
        return new_request(self._numbers, self._tokens)

    def lookup(self, request: Any) -> int:  # noqa: ANN401 - as above.
        """Return how many tokens the request has, of the pool and of host memory."""
        self.scheduler.on_new_request(request)
        found, _ = self.scheduler.get_num_new_matched_tokens(request, self._num_pool_tokens)
        assert found is not None
        return self._num_pool_tokens + int(found)
