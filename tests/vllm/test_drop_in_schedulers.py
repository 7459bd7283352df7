"""vLLM's schedulers on our cache schedule what they schedule on their own, step by step.

Both kinds of scheduler are the real ones. Unsupported options are refused with a remedy.
"""

import pytest
from kvbraid.errors import UnsupportedError

from tests.vllm.engines import LAYOUTS, Engines, Layout, alike, config, scheduler

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm import KvbraidAsyncScheduler, KvbraidScheduler
    from kvbraid.integrations.vllm.version import check_version
    from vllm.config import KVTransferConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_steps_are_scheduled_alike(layout: Layout, is_async: bool) -> None:
    engines = Engines(layout, is_async=is_async)
    engines.live()
    assert engines.num_preempted > 0
    assert "inside" not in str(layout) or engines.num_copies > 0
    assert engines.num_hits > 0
    alike(made.kv_cache_manager.prefix_cache_stats for made in engines.schedulers)


def test_the_stock_manager_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(KVCacheManager, "__init__", refuse)
    layout = LAYOUTS["window and full"]
    made = scheduler(KvbraidScheduler, layout, config(layout, is_async=False))
    assert type(made.kv_cache_manager).__name__ == "KvbraidCacheManager"
    with pytest.raises(AssertionError):
        scheduler(Scheduler, layout, config(layout, is_async=False))


@pytest.mark.parametrize(
    ("kind", "is_async", "remedy"),
    [
        (KvbraidScheduler, True, "KvbraidAsyncScheduler, or --no-async-scheduling"),
        (KvbraidAsyncScheduler, False, "KvbraidScheduler, or --async-scheduling"),
    ],
)
def test_a_wrong_pairing_is_refused(kind: type, is_async: bool, remedy: str) -> None:
    layout = LAYOUTS["window and full"]
    with pytest.raises(UnsupportedError, match=remedy):
        scheduler(kind, layout, config(layout, is_async=is_async))


def test_whole_hashes_in_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    layout = LAYOUTS["window and full"]
    with pytest.raises(UnsupportedError, match="VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"):
        scheduler(KvbraidScheduler, layout, config(layout, is_async=False))


@pytest.mark.parametrize("connector", ["SimpleCPUOffloadConnector", "MooncakeStoreConnector"])
def test_a_connector_that_needs_the_pool_is_refused(connector: str) -> None:
    layout = LAYOUTS["window and full"]
    made = config(layout, is_async=False)
    made.kv_transfer_config = KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    with pytest.raises(UnsupportedError, match=f"{connector} reaches into"):
        scheduler(KvbraidScheduler, layout, made)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0"])
def test_another_version_is_refused(version: str) -> None:
    check_version("0.32.1")
    with pytest.raises(UnsupportedError, match=r"install vllm==0\.32\.0"):
        check_version(version)
