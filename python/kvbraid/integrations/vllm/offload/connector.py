"""What vLLM calls to offload blocks, in the scheduler's process and in the workers'.

Each half passes its calls on to its side; the other half's side is None. Loads are asynchronous:
a state cannot come with a step, because vLLM copies states before it lets a connector load.
"""

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, Final

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.offload.messages import OffloadJobs, RankFacts
from kvbraid.integrations.vllm.offload.options import offload_settings
from kvbraid.integrations.vllm.offload.scheduler_side import SchedulerSide
from kvbraid.integrations.vllm.offload.worker_side import WorkerSide
from kvbraid.integrations.vllm.recovery.tracked import TrackedCacheManager
from kvbraid.loads import Failures, Record


class OffloadConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # Untyped without vLLM.
    """Offloads blocks to host memory and disk; for `--kv-transfer-config` (docs/offload.md).

    Raises:
        InvalidValueError: An option is unknown or wrong; the message shows it, and the remedy.
        UnsupportedError: Another scheduler than ours, or blocks that nobody would find again.
    """

    takes_findable: Final = True
    """Our schedulers let the cache list what becomes findable."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = offload_settings(vllm_config)
        self._facts: dict[int, RankFacts] = {}
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.WORKER:
            self._worker = WorkerSide(vllm_config, kv_cache_config, self._settings)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Ask for blocks whose bytes are together; vLLM takes another layout if it has to."""
        del vllm_config
        return "BLHNC"

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: what is not stored is computed again."""
        return False

    # The workers' half.

    @property
    def _here(self) -> WorkerSide:
        assert self._worker is not None, "a call for a worker in the scheduler's process"
        return self._worker

    def _told(self) -> OffloadJobs:
        told = self._get_connector_metadata()
        assert isinstance(told, OffloadJobs)
        return told

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the engine's memory over."""
        self._here.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Return what the scheduler has to know of this rank."""
        return self._here.facts

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Begin the step's jobs but its stores."""
        del forward_context, kwargs
        self._here.begin(self._told())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing: no load comes with a step."""

    def save_kv_layer(self, *args: object, **kwargs: object) -> None:
        """Save nothing: blocks are stored whole, after the step."""

    def wait_for_save(self) -> None:
        """Begin the step's stores; the scheduler holds the blocks until they have ended."""
        self._here.save(self._told())

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return what there is to say after a step."""
        return self._here.report(self._told())

    # The scheduler's half.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Learn what ranks there are, once; now tiers can be decided about."""
        facts = [each for each in metadata.values() if isinstance(each, RankFacts)]
        self._facts = {each.rank: each for each in facts}
        assert self._decisions is not None

    @cached_property
    def _decisions(self) -> SchedulerSide:
        assert isinstance(self._kv_cache_manager, TrackedCacheManager)
        assert self._facts, "no rank has said what memory it has"
        engine = str(self._vllm_config.parallel_config.data_parallel_index)
        facts = list(self._facts.values())
        return SchedulerSide(self._kv_cache_manager, self._settings, facts, engine=engine)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens a load brings, and whether the request waits for it."""
        return self._decisions.look_up(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Begin a load into the blocks that a request has got for it."""
        del blocks
        if num_external_tokens:
            self._decisions.begin_load(request)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Return where the tokens of a request's load come from, for vLLM's statistics."""
        return self._decisions.hit_sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return the jobs that begin with a step."""
        return self._decisions.jobs(scheduler_output)

    def settle(self, output: KVConnectorOutput) -> None:
        """Take what workers say: `SettlingConnector.settle`."""
        self._decisions.settle(output)

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        """Forget what was copied from blocks with garbage: `Tiers.forget_blocks`."""
        return self._decisions.offload.forget_blocks(block_ids)

    def drop(self, record: Record) -> None:
        """Drop a record that is no good: `Tiers.drop`."""
        self._decisions.offload.drop(record)

    def back_off(self, record: Record) -> None:
        """Leave a record's tier alone for a while: `Tiers.back_off`."""
        self._decisions.offload.back_off(record)

    def reset_cache(self) -> bool:
        """Forget all that tiers hold; vLLM asks for it when weights have changed."""
        self._decisions.reset()
        return True

    def register_finished_partial_tail(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],
        partial_tail_offloads: list[tuple[int, BlockId, int]],
    ) -> bool:
        """Store the states of a request that ends inside a block; return False, as below."""
        del block_ids
        self._decisions.note_tail(request, partial_tail_offloads)
        return False

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return False: blocks that are stored are held, whether or not their request goes on."""
        del block_ids
        self._decisions.finished(request)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Return what tiers have got and lost."""
        return self._decisions.take_events()

    def has_pending_push_work(self) -> bool:
        """Return whether something moves, so that an idle engine goes on stepping."""
        return self._decisions.is_busy

    def shutdown(self) -> None:
        """End threads, and give memory and files back."""
        if self._worker is not None:
            self._worker.close()
        elif "_decisions" in self.__dict__:
            self._decisions.close()
