"""Operators see what the scheduler's side counts, and the sums of what all ranks count."""

import pickle
from dataclasses import fields
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import prometheus_client
import pytest

from tests.unit.transfer.faulty_tier import (
    NAMESPACE,
    USED,
    FaultyTier,
    empty,
    fail,
    job,
    key,
    run,
)
from tests.unit.transfer.workers import rank
from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import NUM_RANKS, OffloadingEngine
from tests.vllm.recovery.ghost_engine import LAYOUTS

if True:  # Only after `ghost_ranks` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm.offload import worker_side
    from kvbraid.integrations.vllm.offload.messages import OffloadJobs, OffloadReport, RankNews
    from kvbraid.integrations.vllm.offload.options import OffloadSettings
    from kvbraid.integrations.vllm.offload.tier_metrics import TierMetrics
    from kvbraid.integrations.vllm.offload.worker_side import WorkerSide
    from kvbraid.loads import Record
    from kvbraid.transfer.jobs import Kind
    from kvbraid.transfer.offload import Drop, OffloadCounts
    from kvbraid.transfer.record_store import RecordStore
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

PROMPT: Final = tokens(1, 130)
NUMBERS: Final = count(900)
"""Engines that no other test has."""


def shown(engine: str) -> dict[tuple[str, ...], float]:
    """Return the samples of an engine, by metric and labels."""
    return {
        (sample.name, *(text for name, text in sample.labels.items() if name != "engine")): (
            sample.value
        )
        for metric in prometheus_client.REGISTRY.collect()
        for sample in metric.samples
        if metric.name.startswith("kvbraid_tier_") and sample.labels.get("engine") == engine
        if not sample.name.endswith("_created")
    }


def test_every_count_of_the_manager_is_a_metric() -> None:
    numbers, engine = count(2), str(next(NUMBERS))
    keys: dict[str, Any] = {
        "num_bytes": (Kind.STORE, ""),
        "seconds": (Kind.WRITE, "disk"),
        "hits": "host",
        "drops": ("disk", Drop.FAILED),
        "num_pending": Kind.LOAD,
    }
    counts = OffloadCounts()
    for each in fields(OffloadCounts):
        if each.name in keys:
            getattr(counts, each.name)[keys[each.name]] = next(numbers)
        else:
            setattr(counts, each.name, next(numbers))
    offload: Any = SimpleNamespace(counts=counts, num_blocks=lambda: {"host": 1})
    TierMetrics(offload, engine).tell(0.0)
    assert sorted(shown(engine).values()) == [*range(1, next(numbers))]


def test_totals_of_ranks_are_added_up_and_told_once() -> None:
    engine = str(next(NUMBERS))
    offload: Any = SimpleNamespace(counts=OffloadCounts(), num_blocks=dict)
    metrics = TierMetrics(offload, engine)
    metrics.take(0, {("records", "disk", "write", "ok"): 5, ("slots", "ready"): 8})
    metrics.take(1, {("records", "disk", "write", "ok"): 4, ("slots", "ready"): 8})
    metrics.tell(0.0)
    metrics.take(1, {("records", "disk", "write", "ok"): 6})
    metrics.tell(0.5)
    records = "kvbraid_tier_records_total", "disk", "write", "ok"
    assert shown(engine)[records] == 9, "less than a second has passed"
    metrics.tell(1.0)
    metrics.tell(2.0)
    assert shown(engine)[records] == 11
    assert shown(engine)["kvbraid_tier_slots", "ready"] == 16


def test_what_all_ranks_see_of_one_directory_is_told_once() -> None:
    engine = str(next(NUMBERS))
    offload: Any = SimpleNamespace(counts=OffloadCounts(), num_blocks=dict)
    metrics = TierMetrics(offload, engine)
    for each in range(2):
        metrics.take(each, {("directory_bytes", "disk"): 7 + each, ("record_bytes", "disk"): 3})
    metrics.tell(0.0)
    assert shown(engine)["kvbraid_tier_directory_bytes", "disk"] == 8
    assert shown(engine)["kvbraid_tier_record_bytes", "disk"] == 6


def test_a_rank_says_what_has_changed_and_logs_its_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list[str]()
    logger = SimpleNamespace(warning=lambda text, *given: lines.append(text % given))
    monkeypatch.setattr(worker_side, "logger", logger)
    tier = FaultyTier()
    store = RecordStore("disk", tier, namespace=NAMESPACE, used_bytes=USED)
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(rank=1))
    side = WorkerSide(config, config, OffloadSettings(host_bytes=1))
    told = OffloadJobs()

    def said() -> dict[tuple[str, ...], int]:
        side._next_count = 0.0
        report = side.report(told)
        assert side.report(told) is None, "it has been said"
        return {} if report is None else report.ranks[1].counts

    with rank() as own:
        side._worker, side._stores = own.worker, {"disk": store}
        assert said()["slots", "ready"] == own.host.slots.num_slots
        assert said() == {}
        tier.before["load"] = fail(OSError("gone"))
        for number in range(2):
            run(store, job(number, Kind.PROMOTE, key(1)), empty())
        errors = {
            ("records", "disk", "promote", "io_error"): 2,
            ("incidents", "disk", "errors"): 2,
        }
        assert said() == errors
        assert lines == ["kvbraid: rank 1, disk: load: OSError: gone"]
    assert store.close(60)


def test_what_ranks_say_is_pickled_joined_and_counted_by_the_scheduler() -> None:
    engine = OffloadingEngine(LAYOUTS["full"], is_async=False, seed=1)
    said = [
        OffloadReport(ranks={each: RankNews(counts={("incidents", "disk", "late"): each + 1})})
        for each in range(NUM_RANKS)
    ]
    joined = pickle.loads(pickle.dumps(said[0])).aggregate(pickle.loads(pickle.dumps(said[1])))
    engine.ranks = SimpleNamespace(execute=lambda told: joined)  # type: ignore[assignment]
    engine.step()
    metrics = engine.connector._decisions._metrics
    before = shown("0").get(("kvbraid_tier_incidents_total", "disk", "late"), 0)
    metrics.tell(metrics._due)
    assert shown("0")["kvbraid_tier_incidents_total", "disk", "late"] - before == 3


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "four groups"])
def test_vllm_is_told_the_tier_that_tokens_come_from(name: str) -> None:
    engine = OffloadingEngine(LAYOUTS[name], is_async=False, seed=1)
    made, make = list[Any](), engine.scheduler.make_stats

    def note(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - vLLM's own types.
        made.append(make(*given, **more))
        return made[-1]

    engine.scheduler.make_stats = note
    stats = []  # Of four groups, too much is written at once for the disk to get all of it.
    for place in ("computed", "host", "disk"):
        engine.scheduler.reset_prefix_cache()
        if place == "disk":
            for stored in list(engine.offload.contents()["host"]):
                engine.offload.drop(Record("host", stored.to_bytes()))
        engine.add(PROMPT, 1)
        engine.finish()
        stats.append([each.connector_prefix_cache_stats.hits_by_source for each in made])
        made.clear()
    computed, from_host, from_disk = ([each for each in steps if each] for steps in stats)
    assert computed == []
    ((hits,),) = (each.values() for each in from_host)
    assert hits >= 64
    assert from_host == [{CacheHitSource.HOST: hits}]
    assert [{*each} for each in from_disk] == [{CacheHitSource.DISK}]
