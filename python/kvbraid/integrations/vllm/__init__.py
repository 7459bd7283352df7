"""vLLM on our cache: two classes for `--scheduler-cls`, one for each of its schedulers."""

# ruff: noqa: E402 - the version is checked before anything of vLLM's inner parts is imported.
from kvbraid.integrations.vllm.version import check_version

check_version()

from kvbraid.integrations.vllm.convert import EngineSettings, cache_config
from kvbraid.integrations.vllm.failures import LoadFailures
from kvbraid.integrations.vllm.manager import KvbraidCacheManager
from kvbraid.integrations.vllm.schedulers import KvbraidAsyncScheduler, KvbraidScheduler

__all__ = [
    "EngineSettings",
    "KvbraidAsyncScheduler",
    "KvbraidCacheManager",
    "KvbraidScheduler",
    "LoadFailures",
    "cache_config",
]
