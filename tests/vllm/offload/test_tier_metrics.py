"""Operators see what the scheduler's side counts, and the sums of what all ranks count."""

import pickle
from dataclasses import fields
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import prometheus_client
import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import NUM_RANKS, OffloadingEngine
from tests.vllm.recovery.ghost_engine import LAYOUTS

if True:  # Only after `ghost_ranks` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm.offload.messages import OffloadReport, RankNews
    from kvbraid.integrations.vllm.offload.tier_metrics import TierMetrics
    from kvbraid.loads import Record
    from kvbraid.transfer.jobs import Kind
    from kvbraid.transfer.offload import Drop, OffloadCounts
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


def test_what_ranks_say_is_pickled_joined_and_counted_by_the_scheduler() -> None:
    engine = OffloadingEngine(LAYOUTS["full"], is_async=False, seed=1)
    said = [
        OffloadReport(ranks={rank: RankNews(counts={("incidents", "disk", "late"): rank + 1})})
        for rank in range(NUM_RANKS)
    ]
    joined = pickle.loads(pickle.dumps(said[0])).aggregate(pickle.loads(pickle.dumps(said[1])))
    execute = engine.ranks.execute
    engine.ranks = SimpleNamespace(execute=lambda told: joined)  # type: ignore[assignment]
    engine.step()
    engine.ranks = SimpleNamespace(execute=execute)  # type: ignore[assignment]
    metrics = engine.connector._decisions._metrics  # type: ignore[attr-defined]
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
            for key in list(engine.offload.contents()["host"]):
                engine.offload.drop(Record("host", key.to_bytes()))
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
