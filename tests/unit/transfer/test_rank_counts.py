"""What a rank counts reaches whoever adds up ranks, under names that do not grow."""

import pickle
from dataclasses import fields
from pathlib import Path

from kvbraid.transfer.disk import DiskCounts, DiskTier
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.rank_counts import INCIDENTS, rank_counts
from kvbraid.transfer.record_store import RecordStore, StoreOptions, TierCounts
from kvbraid.transfer.status import Status

from tests.unit.transfer.disk_process import RECORD_BYTES
from tests.unit.transfer.disk_process import store as store_record
from tests.unit.transfer.faulty_tier import (
    NAMESPACE,
    USED,
    FakeClock,
    FaultyTier,
    Hang,
    block,
    empty,
    fail,
    run,
)
from tests.unit.transfer.faulty_tier import job as record_job
from tests.unit.transfer.faulty_tier import key as record_key
from tests.unit.transfer.workers import LateEngine, item, job, rank

NOT_TOLD = {"blocks", "bytes", "seconds", "last_error", "queued_blocks"}
"""Of `TierCounts`: what has a metric of its own, what the scheduler's side counts, and a text."""


def test_every_end_of_a_record_is_counted_and_hung_calls_are_seen() -> None:
    tier, clock = FaultyTier(), FakeClock()
    options = StoreOptions(num_threads=2, max_hung_threads=1)
    store = RecordStore(
        "disk", tier, namespace=NAMESPACE, used_bytes=USED, options=options, clock=clock
    )
    run(store, record_job(1, Kind.WRITE, record_key(1), record_key(2)), block(1), block(2))
    tier.records[record_key(1)] = b""
    asked = record_job(2, Kind.PROMOTE, record_key(1), record_key(2), record_key(3))
    run(store, asked, empty(), empty(), empty())
    tier.before["load"] = fail(OSError("the disk is gone"))
    run(store, record_job(3, Kind.PROMOTE, record_key(2)), empty())
    tier.before["load"] = hang = Hang()
    store.submit(record_job(4, Kind.PROMOTE, record_key(2)), [empty()])
    assert hang.began.wait(60)
    clock.now += options.load_deadline_s
    with rank() as own:
        counts = pickle.loads(pickle.dumps(rank_counts(own.worker, {"disk": store}, {})))
    hang.end.set()
    while store.counts().hung_threads:  # As long as it hangs, the store cannot be closed whole.
        store.wait(60)
    assert store.close(60)
    records = {key[2:]: number for key, number in counts.items() if key[0] == "records"}
    assert records.keys() == {
        (kind, status) for kind in ("write", "promote", "drop") for status in map(str, Status)
    }
    assert {key: number for key, number in records.items() if number} == {
        ("write", "ok"): 2,
        ("promote", "ok"): 1,
        ("promote", "short"): 1,
        ("promote", "miss"): 1,
        ("promote", "io_error"): 1,
        ("promote", "timeout"): 1,
    }
    incidents = {key[2]: number for key, number in counts.items() if key[0] == "incidents"}
    assert incidents == dict.fromkeys(INCIDENTS, 0) | {"bad": 1, "errors": 1}
    now = {key: number for key, number in counts.items() if len(key) == 2 and key[1] == "disk"}
    assert now == {
        ("hung_threads", "disk"): 1,
        ("ranks_off", "disk"): 1,
        ("ranks_paused", "disk"): 0,
        ("queued_bytes", "disk"): 0,
    }


def test_what_a_rank_could_not_move_is_counted_beside_what_its_tiers_answer() -> None:
    engine = LateEngine()
    engine.refused_group = 1
    with rank(engine) as own:
        own.ended(job(Kind.STORE, item(1, 1, 1), item(0, 0, 1)))
        own.ended(job(Kind.PROMOTE, item(0, 0, 1, record_key(1)), number=2))
        counts = rank_counts(own.worker, {}, {})
        slots = own.host.slots.num_slots
    assert counts == {
        ("failed_items", "bad_item"): 1,
        ("failed_items", "copy"): 1,
        ("slots", "ready"): slots,
        ("slots", "unpinned"): 0,
    }


def test_incidents_of_a_mover_are_those_of_the_device() -> None:
    engine = LateEngine()
    engine.incidents = {"calibration_trials": 3}
    with rank(engine) as own:
        counts = rank_counts(own.worker, {}, {})
    assert counts["incidents", "device", "calibration_trials"] == 3


def test_every_count_of_a_tier_is_told() -> None:
    told = {*INCIDENTS.values(), "queued_bytes", "hung_threads", "is_off", "is_paused"}
    assert told | NOT_TOLD == {each.name for each in fields(TierCounts)}


def test_what_is_in_a_directory_and_was_done_to_it_is_told(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "tier", max_bytes=40 * RECORD_BYTES)
    disk.open(NAMESPACE)
    assert {store_record(disk, number) for number in range(50)} == {Status.OK}
    with rank() as own:
        counts = rank_counts(own.worker, {}, {"disk": disk})
    known = disk.counts()
    disk.close()
    told = {key: number for key, number in counts.items() if "disk" in key}
    assert told == {
        ("incidents", "disk", "evicted"): known.evicted,
        ("incidents", "disk", "orphans"): 0,
        ("ranks_evicting", "disk"): 1,
        ("ranks_direct", "disk"): known.is_direct,
        ("record_bytes", "disk"): known.bytes,
        ("directory_bytes", "disk"): known.bytes,
        ("directory_limit_bytes", "disk"): 40 * RECORD_BYTES,
        ("directory_ignored", "disk"): 0,
    }
    assert known.evicted >= 10
    assert len(told) == len(fields(DiskCounts)) - 1, "but for records, which are blocks of a tier"
