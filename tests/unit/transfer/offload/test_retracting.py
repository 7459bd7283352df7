"""Nothing that was copied from garbage stays anywhere."""

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Drop, Found, OffloadCounts
from kvbraid.transfer.offload.loading import Copied
from kvbraid.transfer.offload.retracting import Origins
from kvbraid.transfer.status import Status

from tests.unit.transfer.offload.engine import Engine

PROMPT = range(18)
DISK = [("disk", 50)]


def first_block(engine: Engine, request: int) -> BlockId:
    return engine.cache.blocks(request)[0][0]


def test_what_was_copied_from_a_block_is_retracted_from_every_tier() -> None:
    engine = Engine(tiers=DISK)
    block = first_block(engine, engine.compute(PROMPT))
    engine.manager.take_events()
    engine.manager.forget_blocks([block])
    assert engine.manager.num_blocks() == {"host": 7, "disk": 7}
    events = engine.manager.take_events()
    assert [(type(e).__name__, e.medium) for e in events] == [
        ("BlockRemoved", "CPU"),
        ("BlockRemoved", "STORAGE"),
    ]
    engine.run()
    assert len(engine.workers[0].records["disk"]) == 7
    assert engine.manager.counts.drops["disk", Drop.RETRACTED] == 1


def test_a_store_that_waits_or_is_under_way_is_cancelled() -> None:
    for num_runs in (0, 1):
        engine = Engine(tiers=DISK)
        block = first_block(engine, engine.compute(PROMPT, to_end=False))
        for _ in range(num_runs):
            engine.take_jobs()
        engine.manager.forget_blocks([block])
        engine.run()
        assert engine.manager.num_blocks() == {"host": 7, "disk": 7}
        engine.check_idle()


def test_a_write_under_way_is_followed_by_a_drop() -> None:
    engine = Engine(tiers=DISK)
    block = first_block(engine, engine.compute(PROMPT, to_end=False))
    engine.take_jobs()
    engine.end(engine.jobs[0])
    engine.take_jobs()
    assert [job.kind for job in engine.jobs] == [Kind.WRITE]
    engine.manager.forget_blocks([block])
    engine.run()
    assert engine.manager.num_blocks() == {"host": 7, "disk": 7}
    assert len(engine.workers[0].records["disk"]) == 7


def test_a_record_that_went_while_another_one_of_its_job_hung_is_dropped_once() -> None:
    engine = Engine(tiers=DISK)
    block = first_block(engine, engine.compute(PROMPT, to_end=False))
    engine.take_jobs()
    engine.end(engine.jobs[0])
    engine.take_jobs()
    job = engine.jobs.pop()
    statuses = (*(engine.workers[0].move(job, item) for item in job.items[:-1]), Status.TIMEOUT)
    hung = JobResult(number=job.number, statuses=statuses, is_over=False)
    engine.manager.finished(0, [hung])
    engine.manager.forget_blocks([block])
    engine.run()
    engine.manager.finished(0, [JobResult(number=job.number, statuses=statuses)])
    drops = [drop for drop in engine.manager.take_jobs() if drop.kind is Kind.DROP]
    assert [item.key for drop in drops for item in drop.items] == [job.items[-1].key]


def test_the_same_content_computed_again_is_not_written_before_the_drop() -> None:
    engine = Engine(tiers=DISK)
    request = engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    engine.end(engine.jobs[0])
    engine.take_jobs()
    writes, engine.jobs = engine.jobs, []
    engine.manager.forget_blocks([first_block(engine, request)])
    engine.release(request)
    engine.evict()
    engine.compute(PROMPT)
    assert engine.manager.num_blocks() == {"host": 8, "disk": 0}
    for job in writes:
        engine.end_now(job)
    engine.run()
    assert engine.manager.num_blocks()["disk"] == 7


def test_a_load_that_reads_a_retracted_record_fails_there() -> None:
    engine = Engine()
    request = engine.compute(PROMPT)
    block = first_block(engine, request)
    engine.release(request)
    engine.evict()
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    engine.manager.forget_blocks([block])
    engine.run()
    (report,) = engine.manager.take_reports()
    assert report.failures.places == {engine.request: {0: {0}}}
    assert not report.failures.causes
    engine.check_idle()


def test_what_a_load_has_copied_of_garbage_in_the_pool_is_returned_when_it_has_ended() -> None:
    engine = Engine()
    request = engine.compute(PROMPT)
    copied, lost = engine.cache.blocks(request)[0][2], engine.cache.blocks(request)[0][1]
    engine.release(request)
    engine.cache.pool.forget([lost])
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    engine.run()
    engine.manager.take_reports()
    assert engine.manager.forget_blocks([copied]).places == {engine.request: {0: {2}}}
    assert not engine.manager.forget_blocks([copied])
    assert engine.manager.take_reports() == []


def test_it_is_not_returned_once_the_block_may_hold_something_else() -> None:
    engine = Engine()
    request = engine.compute(PROMPT)
    copied, lost = engine.cache.blocks(request)[0][2], engine.cache.blocks(request)[0][1]
    engine.release(request)
    engine.cache.pool.forget([lost])
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    engine.run()
    engine.manager.take_reports()
    engine.evict()
    assert not engine.manager.forget_blocks([copied])


def test_nor_when_another_request_has_computed_the_same_in_the_block() -> None:
    engine = Engine()
    request = engine.compute(PROMPT)
    blocks = engine.cache.blocks(request)[0]
    copied, lost = blocks[2], blocks[1]
    engine.release(request)
    engine.cache.pool.forget([lost])
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    engine.run()
    engine.release(engine.request)
    was = Copied.of(engine.cache, [copied])
    pool = engine.cache.pool
    pool.free(sorted(pool.take(pool.num_free)))  # As they were before the first request.
    engine.compute(PROMPT)
    assert Copied.of(engine.cache, [copied])[0][:-1] == was[0][:-1]
    assert not engine.manager.forget_blocks([copied])


def test_what_is_retracted_can_be_stored_again() -> None:
    engine = Engine(tiers=DISK)
    request = engine.compute(PROMPT)
    engine.manager.forget_blocks([first_block(engine, request)])
    engine.release(request)
    engine.evict()
    engine.run()
    engine.forgotten(PROMPT)
    assert engine.manager.num_blocks() == {"host": 8, "disk": 8}


def test_a_record_dropped_by_the_tier_itself_is_not_found() -> None:
    engine = Engine(tiers=DISK)
    engine.forgotten(PROMPT)
    keys = list(engine.manager.contents()["disk"])
    engine.manager.vanished("disk", keys[:3])
    assert engine.manager.num_blocks()["disk"] == 5
    engine.manager.opened("disk", keys)
    assert engine.manager.num_blocks()["disk"] == 8


def test_of_too_many_copies_the_oldest_is_forgotten_and_counted() -> None:
    counts = OffloadCounts()
    origins = Origins(2, counts)
    keys = [BlockKey(bytes([n]) * 32, 0) for n in range(3)]
    for block, key in enumerate(keys):
        origins.note(key, BlockId(block))
        origins.check_integrity()
    assert origins.keys_of([BlockId(0), BlockId(1), BlockId(2)]) == keys[1:]
    assert counts.num_forgotten_origins == 1
