"""A pytest plugin: vLLM's own tests find our classes under the names of vLLM's.

Loaded before any test module. It notes what each test did: whether it passed, and whether our
cache was called while it ran; a test that never reaches our cache says nothing about it.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import vllm.v1.core.block_pool
import vllm.v1.core.kv_cache_manager
import vllm.v1.core.kv_cache_utils
import vllm.v1.core.sched.async_scheduler
import vllm.v1.core.sched.scheduler
import vllm.v1.core.single_type_kv_cache_manager
from kvbraid.cache import CacheManager
from kvbraid.integrations.vllm import schedulers

from . import surface

_PLACES: Final = {
    "KVCacheManager": (vllm.v1.core.kv_cache_manager, vllm.v1.core.sched.scheduler),
    "BlockPool": (vllm.v1.core.block_pool,),
    "BlockHashToBlockMap": (vllm.v1.core.block_pool,),
    "KVCacheBlock": (vllm.v1.core.kv_cache_utils,),
    **dict.fromkeys(
        (
            "ChunkedLocalAttentionManager",
            "CircularBufferManager",
            "FullAttentionManager",
            "MambaManager",
            "RSWAManager",
            "SlidingWindowManager",
        ),
        (vllm.v1.core.single_type_kv_cache_manager,),
    ),
}
_MANAGERS: Final = {
    "KvbraidCacheManager": surface.KVCacheManager,
    "TrackedCacheManager": surface.TrackedManager,
}


def _put_in_place() -> None:
    for name, modules in _PLACES.items():
        for module in modules:
            setattr(module, name, getattr(surface, name))
    # Tests of schedulers look at blocks, too.
    for name, ours in _MANAGERS.items():
        setattr(schedulers, name, ours)
    vllm.v1.core.sched.scheduler.Scheduler = schedulers.KvbraidScheduler
    vllm.v1.core.sched.async_scheduler.AsyncScheduler = schedulers.KvbraidAsyncScheduler


class Calls:
    """Counts the calls of our cache."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on as they are.
            self.count += 1
            return method(*args, **kwargs)

        return call


_CALLS: Final = Calls()
_OUTCOMES: Final[dict[str, dict[str, object]]] = {}


def _count(owner: type, name: str) -> None:
    setattr(owner, name, _CALLS.counted(getattr(owner, name)))


def pytest_configure() -> None:
    """Put our classes in place, and count the calls of the cache below them."""
    _put_in_place()
    for name, member in list(vars(CacheManager).items()):
        if callable(member) and (name == "__init__" or not name.startswith("_")):
            _count(CacheManager, name)
    # A manager that refuses its configuration has no cache yet.
    _count(surface.KVCacheManager, "__init__")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = _CALLS.count
    try:
        return (yield)
    finally:
        outcome = _OUTCOMES.setdefault(item.nodeid, {})
        outcome["reached"] = _CALLS.count > before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = _OUTCOMES.setdefault(report.nodeid, {"reached": False})
    if report.when == "call" or not report.passed:
        path, line, _ = report.location
        outcome.update(file=path, line=(line or 0) + 1, passed=report.passed)
        if report.failed:
            outcome["why"] = str(getattr(report.longrepr, "reprcrash", None) or report.longrepr)


def pytest_sessionfinish() -> None:
    """Write what was noted where the caller asked for it."""
    Path(os.environ["KVBRAID_UPSTREAM_OUTCOMES"]).write_text(json.dumps(_OUTCOMES, indent=1))
