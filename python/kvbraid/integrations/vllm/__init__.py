"""vLLM on our cache: two classes for `--scheduler-cls`, one for each of its schedulers.

In reading order: `version` refuses other releases; `cache` is our cache in the place of vLLM's
manager; `recovery` is what becomes of requests whose loads fail; `options` is what operators ask
for, `policy_metrics` what they are told; `schedulers` is what an engine starts. `offload` has a
connector that stores blocks in host memory and on disk. `disk_tier` is for vLLM's own
`OffloadingConnector`. Both need the extra `transfer`, so they are imported with their names.
"""

# ruff: noqa: E402 - the version is checked before anything of vLLM's inner parts is imported.
from kvbraid.integrations.vllm.version import check_version

check_version()

from typing import TYPE_CHECKING

from kvbraid.integrations.vllm.cache.convert import EngineSettings, cache_config
from kvbraid.integrations.vllm.cache.manager import KvbraidCacheManager
from kvbraid.integrations.vllm.recovery.failures import LoadFailures
from kvbraid.integrations.vllm.schedulers import KvbraidAsyncScheduler, KvbraidScheduler

__all__ = [
    "EngineSettings",
    "KvbraidAsyncScheduler",
    "KvbraidCacheManager",
    "KvbraidScheduler",
    "LoadFailures",
    "cache_config",
]

if TYPE_CHECKING:
    from kvbraid.integrations.vllm.disk_tier import KvbraidDiskTier as KvbraidDiskTier
else:  # A type checker that saw it would accept any name at all.

    def __getattr__(name: str) -> object:
        if name != "KvbraidDiskTier":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvbraid.integrations.vllm.disk_tier import KvbraidDiskTier

        return KvbraidDiskTier
