"""Nothing that was stored before a reset is loaded after it, and nothing after it by others."""

import pytest
from kvbraid.events.model import BlockRemoved
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Drop, Found, OffloadOptions
from kvbraid.transfer.offload.writing import _MAX_DROPS

from tests.unit.transfer.offload.engine import Engine, bytes_of

PROMPT = range(18)
DISK = [("disk", 50)]


def test_all_that_tiers_had_is_forgotten_told_and_dropped() -> None:
    engine = Engine(tiers=DISK)
    engine.forgotten(PROMPT)
    engine.manager.take_events()
    assert engine.reset()
    events = engine.manager.take_events()
    assert all(isinstance(event, BlockRemoved) for event in events)
    told = [(event.medium, len(event.block_hashes)) for event in events]
    assert sum(count for medium, count in told if medium == "CPU") == 8
    assert sum(count for medium, count in told if medium == "STORAGE") == 8
    assert engine.look_up(PROMPT) is None
    engine.run()
    assert not engine.workers[0].records["disk"]
    drops = engine.manager.counts.drops
    assert (drops["host", Drop.RESET], drops["disk", Drop.RESET]) == (8, 8)
    engine.check_idle()


def test_an_idle_engine_has_news_until_the_removals_are_told() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    engine.manager.take_events()
    engine.reset()
    assert engine.manager.has_news
    engine.manager.take_events()
    assert not engine.manager.has_news


@pytest.mark.parametrize("num_ended", [0, 1, 2])
def test_a_store_or_a_write_under_way_is_never_found(num_ended: int) -> None:
    engine = Engine(tiers=DISK)
    engine.release(engine.compute(PROMPT, to_end=False))
    for _ in range(num_ended):
        engine.take_jobs()
        engine.end_now(engine.jobs.pop(0))
    engine.take_jobs()
    engine.reset()
    engine.run()
    assert engine.manager.num_blocks() == {"host": 0, "disk": 0}
    assert not engine.workers[0].records["disk"]
    assert engine.manager.counts.drops["host", Drop.RESET] == 8
    engine.check_idle()


def test_a_load_under_way_fails_at_every_position() -> None:
    engine = Engine(tiers=DISK)
    engine.forgotten(PROMPT)
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    targets = engine.begin(found)
    assert not engine.reset()  # The request keeps its blocks.
    engine.run()
    (report,) = engine.manager.take_reports()
    failed = {(g, at) for g, some in report.failures.places[found.request].items() for at in some}
    assert failed == {(target.group, target.position) for target in targets}
    engine.release(found.request)
    engine.check_idle()


def test_a_record_that_is_being_read_is_not_found_afterwards() -> None:
    engine = Engine(tiers=DISK, host_slots=8)
    engine.forgotten(PROMPT)
    engine.forgotten(range(20, 38))
    engine.look_up(PROMPT, may_wait=True)
    engine.take_jobs()
    assert [job.kind for job in engine.jobs] == [Kind.PROMOTE]
    engine.cache.release([engine.request])
    assert engine.reset()
    engine.run()
    assert engine.manager.num_blocks() == {"host": 0, "disk": 0}
    engine.check_idle()


def test_what_is_computed_afterwards_is_stored_and_loaded_also_before_the_drops() -> None:
    engine = Engine(tiers=DISK, host_slots=8)
    engine.forgotten(PROMPT)
    assert engine.reset()
    engine.jobs = [job for job in engine.jobs if job.kind is not Kind.DROP]
    engine.forgotten(PROMPT)
    engine.forgotten(range(20, 38))  # Now host memory has something else.
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    assert (found.num_tokens, found.tier) == (16, "disk")
    targets = engine.begin(found)
    engine.run()
    assert bytes_of(engine, targets) == [engine.content(s.key, 0) for s in found.sources]


def test_records_of_others_are_not_taken_in_any_more() -> None:
    engine = Engine(tiers=DISK, num_ranks=2)
    engine.forgotten(PROMPT)
    others = list(engine.workers[0].records["disk"])
    engine.manager.vanished("disk", others)
    engine.manager.opened("disk", others, 0)
    assert engine.reset()
    for rank in range(2):
        engine.manager.opened("disk", others, rank)
    assert engine.manager.num_blocks()["disk"] == 0


def test_a_later_engine_finds_nothing_of_what_was_computed_with_other_weights() -> None:
    engine = Engine(tiers=DISK)
    engine.forgotten(PROMPT)
    engine.reset()
    engine.forgotten(PROMPT)
    records = list(engine.workers[0].records["disk"])
    assert len(records) == 8
    engine.restart()
    engine.manager.opened("disk", records)
    assert engine.look_up(PROMPT) is None


def test_names_change_with_each_reset_and_others_evict_by_them() -> None:
    engine = Engine(tiers=DISK)
    seen: set[object] = set()
    for _ in range(3):
        engine.forgotten(PROMPT)
        names = [*engine.workers[0].records["disk"]]
        assert seen.isdisjoint(names)
        seen.update(names)
        engine.manager.vanished("disk", names[:3])
        assert engine.manager.num_blocks()["disk"] == 5
        engine.reset()
        engine.workers[0].records["disk"].clear()


def test_records_are_dropped_a_few_at_a_time() -> None:
    num_records = 3 * _MAX_DROPS
    engine = Engine(tiers=[("disk", num_records)], options=OffloadOptions(max_job_items=256))
    keys = [BlockKey(number.to_bytes(32, "big"), 0) for number in range(num_records)]
    engine.manager.opened("disk", keys)
    engine.workers[0].records["disk"] = dict.fromkeys(keys, b"")
    engine.manager.reset()
    most = 0
    while jobs := engine.manager.take_jobs():
        most = max(most, sum(len(job.items) for job in jobs))
        assert engine.manager.num_pending
        for job in jobs:
            engine.manager.finished(0, [engine.workers[0].run(job)])
        engine.manager.check_integrity()
    assert most == _MAX_DROPS
    assert not engine.workers[0].records["disk"]
    assert not engine.manager.num_pending
