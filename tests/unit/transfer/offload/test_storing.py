"""What is stored, when, and what becomes of it."""

import pytest
from kvbraid.cache import CacheConfig, CacheManager, KeptState, Need
from kvbraid.errors import InvalidValueError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.spec import Topology
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.offload import Drop, OffloadManager, OffloadOptions
from kvbraid.transfer.status import Status

from tests.unit.transfer.offload.engine import (
    FULL,
    HYBRID,
    PARTIAL,
    STATE,
    Engine,
    failing,
)

PROMPT = range(10)  # Two whole blocks in each of two groups.
DISK = [("disk", 50)]


def test_what_became_findable_is_stored_when_its_step_has_run() -> None:
    engine = Engine()
    request = engine.cache.add(PROMPT)
    engine.cache.start_step()
    engine.cache.allocate([Need(request=request, num_new_tokens=10)])
    engine.write(request)
    engine.manager.end_schedule(0, engine.cache.take_work().kept_states)
    assert len(engine.manager.held_blocks) == 4
    assert engine.manager.take_jobs() == []
    engine.manager.step_ended(0)
    (job,) = engine.manager.take_jobs()
    assert (job.kind, len(job.items)) == (Kind.STORE, 4)
    engine.end_now(job)
    assert engine.manager.num_blocks() == {"host": 4}
    engine.check_idle()


def test_a_state_that_the_cache_keeps_is_stored() -> None:
    engine = Engine(topology=Topology(groups=(FULL, STATE)))
    engine.compute(range(8))
    assert {key.group for key in engine.manager.contents()["host"]} == {0, 1}


def test_a_state_inside_a_block_at_a_prompts_end_is_found_again() -> None:
    """Its request goes on in the block, so the cache keeps a copy, and the copy is stored."""
    engine = Engine(topology=PARTIAL)
    prompt = range(15)  # Its last boundary is 12, inside the second block of states.
    request = engine.compute(prompt)
    assert engine.cache.match(engine.cache.add(prompt)).num_tokens == 12
    engine.release(request)
    engine.evict()
    num_tokens, (report,) = engine.load(prompt)
    assert (num_tokens, bool(report.failures)) == (12, False)


def begun_at_its_last_boundary(engine: Engine) -> tuple[int, list[KeptState]]:
    """A request that has computed 12 of 15 tokens and nothing after that, and its state."""
    request = engine.cache.add(range(15))
    for num_tokens in (8, 4):
        engine.compute_part(request, num_tokens)
    return request, engine.cache.take_state_tails(request)


def test_a_state_of_a_request_that_ends_right_there_is_stored() -> None:
    engine = Engine(topology=PARTIAL)
    request, tails = begun_at_its_last_boundary(engine)
    engine.release(request)
    engine.manager.end_schedule(2, tails)
    engine.manager.step_ended(2)
    engine.run()
    engine.evict()
    assert engine.load(range(15))[0] == 12


def test_a_state_whose_block_was_handed_out_again_is_not_stored() -> None:
    engine = Engine(topology=PARTIAL)
    request, tails = begun_at_its_last_boundary(engine)
    engine.release(request)
    engine.evict()
    engine.forgotten(range(100, 109))
    engine.manager.end_schedule(engine.num_steps, tails)
    engine.manager.step_ended(engine.num_steps)
    engine.run()
    assert engine.manager.counts.drops["host", Drop.NOT_FOUND] == 1
    engine.evict()
    assert engine.load(range(15))[0] == 8


def test_what_host_memory_has_is_not_stored_again() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    engine.compute(PROMPT, to_end=False)
    assert engine.jobs == []


def test_a_block_that_its_hash_no_longer_finds_is_not_stored() -> None:
    engine = Engine()
    request = engine.cache.add(PROMPT)
    engine.cache.start_step()
    engine.cache.allocate([Need(request=request, num_new_tokens=10)])
    engine.manager.end_schedule(0, engine.cache.take_work().kept_states)
    engine.cache.release([request], step_failed=True)
    engine.manager.step_ended(0)
    assert engine.manager.take_jobs() == []
    assert engine.manager.counts.drops["host", Drop.NOT_FOUND] == 4
    engine.check_idle()


def test_a_failed_store_is_as_if_it_had_never_begun() -> None:
    engine = Engine()
    engine.fails = failing(Status.IO_ERROR, Kind.STORE)
    engine.compute(PROMPT)
    assert engine.manager.num_blocks() == {"host": 0}
    assert engine.manager.take_events() == []
    assert engine.manager.counts.drops["host", Drop.FAILED] == 4
    engine.check_idle()
    engine.fails = failing(Status.OK)
    engine.evict()
    engine.compute(PROMPT)  # Nothing is remembered of the failure.


def test_a_block_counts_once_every_rank_has_stored_its_part() -> None:
    engine = Engine(num_ranks=2)
    engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    (job,) = engine.jobs
    engine.answer(job, 0)
    assert engine.manager.num_blocks() == {"host": 0}
    engine.answer(job, 1)
    assert engine.manager.num_blocks() == {"host": 4}


def test_a_store_that_hangs_keeps_its_blocks_and_slots_until_it_is_over() -> None:
    engine = Engine(host_slots=4)
    engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    job = engine.jobs.pop()
    engine.fails = failing(Status.TIMEOUT, Kind.STORE)
    engine.answer(job, 0, is_over=False)
    assert len(engine.manager.held_blocks) == 4
    engine.forgotten(range(20, 30))
    assert engine.manager.counts.drops["host", Drop.NO_SLOT] == 4
    engine.answer(job, 0)
    engine.check_idle()


def test_no_more_device_blocks_are_held_than_may_be() -> None:
    engine = Engine(options=OffloadOptions(max_pending_stores=3))
    engine.compute(PROMPT, to_end=False)
    assert len(engine.manager.held_blocks) == 3
    assert engine.manager.counts.drops["host", Drop.STORES_FULL] == 1
    small = Engine(num_blocks=9)
    small.compute(PROMPT, to_end=False)
    assert len(small.manager.held_blocks) == 4  # Half of the pool.


def test_a_full_host_loses_what_was_used_longest_ago() -> None:
    engine = Engine(host_slots=4, topology=Topology(groups=(FULL,)))
    engine.forgotten(range(8))
    engine.forgotten(range(20, 28))
    engine.forgotten(range(8))  # It is used again.
    engine.manager.take_events()
    engine.forgotten(range(40, 48))
    assert engine.load(range(10))[0] == 8
    assert engine.load(range(20, 30))[0] == 0
    removed, stored = engine.manager.take_events()  # What follows in a group is one event.
    assert isinstance(removed, BlockRemoved)
    assert isinstance(stored, BlockStored)
    assert len(removed.block_hashes) == len(stored.block_hashes) == 2


def test_what_is_stored_is_written_to_every_tier() -> None:
    engine = Engine(tiers=[("disk", 50), ("far", 3)])
    engine.forgotten(PROMPT)
    assert engine.manager.num_blocks() == {"host": 4, "disk": 4, "far": 3}
    assert len(engine.workers[0].records["far"]) == 3  # What is evicted is dropped.
    assert engine.manager.counts.drops["far", Drop.EVICTED] == 1


def test_what_does_not_fit_into_a_queue_of_writes_is_written_when_there_is_room() -> None:
    engine = Engine(tiers=DISK, options=OffloadOptions(max_pending_writes=1))
    engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    engine.end(engine.jobs[0])
    assert engine.manager.counts.num_pending[Kind.WRITE] == 4
    for num_written in range(4):
        assert engine.manager.num_blocks()["disk"] == num_written
        engine.take_jobs()
        (job,) = engine.jobs
        assert (job.kind, len(job.items), engine.manager.num_pinned) == (Kind.WRITE, 1, 1)
        engine.end(job)
    assert engine.manager.num_blocks()["disk"] == 4
    assert not engine.manager.counts.drops
    engine.check_idle()


def test_what_loses_its_slot_before_there_was_room_to_write_it_is_counted() -> None:
    options = OffloadOptions(max_pending_writes=1)
    engine = Engine(host_slots=5, tiers=DISK, options=options)
    engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    engine.end(engine.jobs[0])
    engine.take_jobs()
    (write,) = engine.jobs
    engine.compute(range(20, 30), to_end=False)
    engine.take_jobs()
    engine.end(next(job for job in engine.jobs if job.kind is Kind.STORE))
    assert engine.manager.num_blocks() == {"host": 5, "disk": 0}
    engine.end(write)
    engine.run()
    assert engine.manager.num_blocks()["disk"] == 5
    assert engine.manager.counts.drops["disk", Drop.WRITES_FULL] == 3
    engine.check_idle()


def test_what_waits_for_room_is_dropped_if_the_tier_is_to_rest() -> None:
    options = OffloadOptions(max_pending_writes=1, failures_before_rest=1)
    engine = Engine(tiers=DISK, options=options)
    engine.fails = failing(Status.FULL, Kind.WRITE, first=1)
    engine.compute(PROMPT)
    assert engine.manager.counts.drops["disk", Drop.RESTING] == 3
    assert engine.manager.num_blocks()["disk"] == 0


def test_a_tier_that_fails_gets_no_writes_for_a_while() -> None:
    options = OffloadOptions(failures_before_rest=2, rest=3)
    engine = Engine(tiers=[("disk", 50)], options=options)
    engine.fails = failing(Status.FULL, Kind.WRITE)
    engine.forgotten(PROMPT)
    engine.fails = failing(Status.OK)
    engine.forgotten(range(20, 30))
    assert engine.manager.counts.drops["disk", Drop.RESTING] == 4
    for _ in range(3):
        engine.step()
    engine.forgotten(range(40, 50))
    assert engine.manager.num_blocks()["disk"] == 4
    engine.check_idle()


def test_a_write_that_failed_is_dropped_because_some_rank_may_have_written() -> None:
    engine = Engine(tiers=[("disk", 50)], num_ranks=2)

    def fails(job: Job, item: object, rank: int) -> Status:
        del item
        return Status.IO_ERROR if job.kind is Kind.WRITE and rank else Status.OK

    engine.fails = fails
    engine.compute(PROMPT)
    for _ in range(200):  # The tier rests after three failures.
        engine.step()
    assert engine.workers[0].records["disk"] == {}


def test_answers_that_no_job_can_have_are_counted() -> None:
    engine = Engine()
    engine.compute(PROMPT, to_end=False)
    engine.take_jobs()
    (job,) = engine.jobs
    good = JobResult(number=job.number, statuses=(Status.OK,) * 4)
    engine.manager.finished(0, [JobResult(number=99, statuses=())])
    engine.manager.finished(1, [good])
    assert engine.manager.counts.num_unknown_results == 2
    engine.manager.finished(0, [JobResult(number=job.number, statuses=(Status.OK,))])
    assert engine.manager.counts.num_bad_results == 1
    assert engine.manager.num_blocks() == {"host": 0}
    engine.manager.finished(0, [good])
    assert engine.manager.counts.num_unknown_results == 3


def test_closed_it_begins_nothing_and_pins_nothing() -> None:
    engine = Engine(tiers=[("disk", 50)])
    engine.compute(PROMPT, to_end=False)
    engine.manager.close()
    engine.run()
    engine.check_idle()
    assert engine.manager.num_blocks() == {"host": 0, "disk": 0}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"host_slots": 0}, "host_slots is 0"),
        ({"host_slots": 1, "num_ranks": 0}, "num_ranks is 0"),
        ({"host_slots": 1, "tiers": [("disk", 0)]}, "num_records of tier 'disk' is 0"),
        ({"host_slots": 1, "tiers": [("host", 1)]}, "host, host; give each its own name"),
    ],
)
def test_what_no_manager_can_have_is_refused(arguments: dict[str, object], problem: str) -> None:
    config = CacheConfig(topology=HYBRID, num_blocks=9, findable=True)
    with pytest.raises(InvalidValueError, match=problem):
        OffloadManager(CacheManager(config), **arguments)  # type: ignore[arg-type]


def test_a_cache_that_does_not_list_what_is_findable_is_refused() -> None:
    cache = CacheManager(CacheConfig(topology=HYBRID, num_blocks=9))
    with pytest.raises(InvalidValueError, match="findable is False"):
        OffloadManager(cache, host_slots=1)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="max_job_items is 0"):
        OffloadOptions(max_job_items=0)
