"""vLLM's schedulers over our cache, and what they refuse before an engine starts.

Each is vLLM's own scheduler, unchanged except for the manager that it builds and what it tells of
that. Name one with `--scheduler-cls`: the asynchronous one unless the engine was told not to
schedule ahead.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import vllm
import vllm.envs
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVEventBatch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.logger import init_logger
from vllm.v1.core.sched import scheduler as stock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.stats import SchedulerStats

from kvbraid import __version__
from kvbraid.cache import ByValue, CacheConfig
from kvbraid.errors import UnsupportedError
from kvbraid.integrations.vllm.cache.manager import KvbraidCacheManager
from kvbraid.integrations.vllm.options import retention_of
from kvbraid.integrations.vllm.policy_metrics import PolicyReport
from kvbraid.integrations.vllm.recovery.rescheduling import RecoveringScheduler
from kvbraid.integrations.vllm.recovery.tracked import TrackedCacheManager
from kvbraid.spec import GroupSpec

logger = init_logger("vllm.kvbraid.start")

_ONE_AT_A_TIME: Final = threading.Lock()

_POOL: Final = "reaches into vLLM's own block pool, which is not there"
_REFUSED_OVERRIDES: Final = {
    "bind_kv_cache_manager": (False, _POOL),
    "bind_gpu_block_pool": (False, _POOL),
    "supports_divergent_local_hybrid_hits": (
        True,
        "continues hits that lack their state, which our cache never hands out",
    ),
}
"""What a connector may not define: whether only for a model with states, and why."""


@contextmanager
def _our_manager(config: VllmConfig) -> Iterator[None]:
    """While this context is open, vLLM's scheduler builds our manager instead of its own.

    vLLM has no hook for this: the scheduler's constructor looks the class up by its name in the
    module, so we replace that name. Setting `kv_cache_manager` after construction is too late: the
    stock manager would have made an object for every block, and the constructor itself reads from
    the manager.
    """
    with _ONE_AT_A_TIME:
        original = stock.KVCacheManager
        has_loads = config.kv_transfer_config is not None
        ours = TrackedCacheManager if has_loads else KvbraidCacheManager
        takes = has_loads and getattr(_connector_of(config), "takes_findable", False)
        stock.KVCacheManager = partial(ours, by_value=retention_of(config), findable=takes)
        try:
            yield
        finally:
            stock.KVCacheManager = original


class _OnKvbraid(RecoveringScheduler):
    """The part that both schedulers share: checks, our manager, recovery, and what it tells."""

    kv_cache_manager: KvbraidCacheManager

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        *args: Any,  # noqa: ANN401 - passed on as they are.
        **kwargs: Any,  # noqa: ANN401 - passed on as they are.
    ) -> None:
        _check_pairing(vllm_config, type(self))
        _check_features(vllm_config)
        _check_connector(vllm_config, kv_cache_config)
        with _our_manager(vllm_config):
            super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        logger.info("%s", start_line(self.kv_cache_manager.cache.config))
        self.start_recovery()
        self._policies: PolicyReport | None = None
        if self.log_stats:
            engine = str(vllm_config.parallel_config.data_parallel_index)
            self._policies = PolicyReport(self.kv_cache_manager.cache, engine)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:  # noqa: ANN401 - passed on as they are.
        """Tell of changes of the eviction policy, and return vLLM's own statistics of a step."""
        if self._policies is not None:
            self._policies.tell()
        stats: SchedulerStats | None = super().make_stats(*args, **kwargs)
        return stats

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401 - passed on as they are.
        """Forget what is cached, and publish that now.

        vLLM publishes it with the engine's next step, and an idle engine takes that for its next
        request: which a fleet would have sent here for what is gone.
        """
        is_reset: bool = super().reset_prefix_cache(*args, **kwargs)
        told = self.kv_cache_manager.take_events()
        if self.connector is not None:
            told += self.connector.take_events()
        if told:
            self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=told))
        return is_reset


class KvbraidScheduler(_OnKvbraid):
    """vLLM's scheduler over our cache; for engines with `--no-async-scheduling`.

    Raises:
        UnsupportedError: The message names what is not supported, and the remedy.
        InvalidValueError: An option does not exist (docs/vllm.md).
    """


class KvbraidAsyncScheduler(_OnKvbraid, AsyncScheduler):  # type: ignore[misc] # Untyped without vLLM.
    """vLLM's asynchronous scheduler over our cache: vLLM schedules ahead unless told otherwise.

    Raises:
        UnsupportedError: The message names what is not supported, and the remedy.
        InvalidValueError: An option does not exist (docs/vllm.md).
    """


def start_line(config: CacheConfig) -> str:
    """Return what an operator reads at the start: versions, groups, blocks and retention."""
    groups = config.topology.groups
    each = "; ".join(f"{number}: {_group(group)}" for number, group in enumerate(groups))
    by_value = isinstance(config.retention, ByValue)
    return (
        f"kvbraid {__version__}: this engine's KV cache is kvbraid's (vLLM {vllm.__version__}), "
        f"{config.num_blocks} blocks, {len(groups)} group{'s'[: len(groups) != 1]} ({each}), "
        f"retention {'by value' if by_value else 'as the engine asks'}, "
        f"prefix caching {'on' if config.caching else 'off'}."
    )


def _group(group: GroupSpec) -> str:
    size = group.window or group.chunk
    tokens = f" of {size} tokens" if size else ""
    return f"{group.kind.value}{tokens} in blocks of {group.block_size}"


def _check_pairing(config: VllmConfig, scheduler: type) -> None:
    is_async = bool(config.scheduler_config.async_scheduling)
    if is_async == issubclass(scheduler, AsyncScheduler):
        return
    right = "KvbraidAsyncScheduler" if is_async else "KvbraidScheduler"
    switch = "--no-async-scheduling" if is_async else "--async-scheduling"
    how = "ahead of the model (asynchronously)" if is_async else "one step at a time"
    raise UnsupportedError(
        f"{scheduler.__name__} with an engine that schedules {how}; pass --scheduler-cls "
        f"kvbraid.integrations.vllm.{right}, or {switch}"
    )


def _check_features(config: VllmConfig) -> None:
    events = config.kv_events_config
    has_events = events is not None and events.enable_kv_cache_events
    problems = (
        (
            config.model_config.is_diffusion,
            "diffusion models need a scheduler of their own; start vLLM without --scheduler-cls",
        ),
        (
            has_events and not vllm.envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES,
            "events with whole hashes are not supported; unset "
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
        ),
        (
            has_events and config.model_config.enable_prompt_embeds,
            "events of prompts given as embeddings are not supported; leave "
            "--enable-prompt-embeds or the events out",
        ),
    )
    for is_there, text in problems:
        if is_there:
            raise UnsupportedError(text)


def _connector_of(config: VllmConfig) -> type[KVConnectorBase_V1]:
    kind: type[KVConnectorBase_V1] = KVConnectorFactory.get_connector_class(
        config.kv_transfer_config
    )
    return kind


def _check_connector(config: VllmConfig, cache: KVCacheConfig) -> None:
    if config.kv_transfer_config is None:
        return
    connector = _connector_of(config)
    for name, (needs_states, text) in _REFUSED_OVERRIDES.items():
        is_own = getattr(connector, name) is not getattr(KVConnectorBase_V1, name)
        if is_own and (cache.has_mamba_layers or not needs_states):
            raise UnsupportedError(
                f"connector {connector.__name__} {text} ({name}); take another connector, or "
                "start vLLM without --scheduler-cls"
            )
