"""What can be loaded, from where, and what ranks say of it."""

from dataclasses import replace
from itertools import count

import pytest
from kvbraid.cache import Need
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.loads import Cause, Record, Target
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Again, Drop, Found, OffloadOptions
from kvbraid.transfer.status import Status

from tests.unit.transfer.offload.engine import FULL, Engine, bytes_of, content_of, failing

PROMPT = range(18)  # Four whole blocks of full attention, of which the window needs two.
DISK = [("disk", 50)]


def restarted(num_ranks: int = 1, options: OffloadOptions | None = None) -> Engine:
    """An engine that has the prompt on disk alone."""
    engine = Engine(tiers=DISK, num_ranks=num_ranks, options=options or OffloadOptions())
    engine.forgotten(PROMPT)
    engine.start()
    for rank, worker in enumerate(engine.workers):
        worker.host.clear()
        engine.manager.opened("disk", list(worker.records["disk"]), rank)
    engine.cache.tiers.take_findable()
    return engine


def test_what_the_boundary_needs_is_loaded_from_host_memory() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    assert (found.num_tokens, found.tier) == (16, "host")
    assert [(s.group, s.position) for s in found.sources] == [(0, p) for p in range(4)] + [
        (1, 2),
        (1, 3),
    ]
    targets = engine.begin(found)
    engine.run()
    keys = [source.key for source in found.sources]
    assert bytes_of(engine, targets) == [content_of(key, 0) for key in keys]
    (report,) = engine.manager.take_reports()
    assert (report.ended, bool(report.failures)) == ([0], False)
    engine.check_idle()


def test_a_position_that_the_pool_has_is_copied_when_the_step_has_run() -> None:
    engine = Engine()
    request = engine.compute(PROMPT)
    lost = engine.cache.blocks(request)[0][1]
    engine.release(request)
    engine.cache.pool.forget([lost])
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    assert [s.tier for s in found.sources] == ["host", "", "", "", ""]
    engine.manager.begin_load(0, 1, [], engine.request)  # It fills nothing after all.
    engine.check()
    assert not engine.manager.held_blocks
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.num_loads = 1
    targets = engine.begin(found)
    assert [job.kind for job in engine.jobs] == [Kind.LOAD]
    engine.run()
    assert bytes_of(engine, targets) == [content_of(s.key, 0) for s in found.sources]
    engine.check_idle()


def test_a_look_up_that_may_wait_asks_to_be_asked_again_until_records_are_verified() -> None:
    engine = restarted()
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    assert engine.manager.lookup(engine.request) is Again.ASK_AGAIN
    engine.run()
    assert engine.manager.num_blocks()["host"] == 6  # What the boundary needs, and no more.
    found = engine.manager.lookup(engine.request)
    assert isinstance(found, Found)
    assert (found.num_tokens, found.tier) == (16, "host")


def test_what_the_pool_has_lost_while_a_look_up_waited_is_read_as_well() -> None:
    engine = restarted()
    request = engine.compute(PROMPT)
    *_, last = engine.cache.blocks(request)[0][:4]
    engine.release(request)
    engine.cache.pool.forget([last])
    for key in engine.manager.contents()["host"]:
        engine.manager.drop(Record("host", key.to_bytes()))
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    assert engine.manager.counts.num_pending[Kind.PROMOTE] == 1
    engine.evict()  # The rest of it was in the pool.
    engine.run()
    assert engine.manager.lookup(engine.request) is Again.ASK_AGAIN
    assert engine.manager.counts.num_pending[Kind.PROMOTE] == 5
    engine.run()
    found = engine.manager.lookup(engine.request)
    assert isinstance(found, Found)
    assert (found.num_tokens, {source.tier for source in found.sources}) == (16, {"host"})
    targets = engine.begin(found)
    engine.run()
    assert bytes_of(engine, targets) == [content_of(s.key, 0) for s in found.sources]
    engine.check_idle()


def test_what_the_pool_has_got_while_a_look_up_waited_is_not_loaded() -> None:
    engine = restarted()
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    waits = engine.request
    engine.compute(PROMPT[:13], to_end=False)
    engine.run()
    found = engine.manager.lookup(waits)
    assert isinstance(found, Found)
    assert [(s.group, s.position, s.tier) for s in found.sources] == [
        (0, 3, "host"),
        (1, 3, "host"),
    ]
    assert (found.num_pool_tokens, found.num_tokens) == (12, 16)
    targets = engine.begin(found)
    engine.run()
    assert bytes_of(engine, targets) == [content_of(s.key, 0) for s in found.sources]


def test_nobody_waits_for_records_of_what_the_pool_has_got() -> None:
    engine = restarted()
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    waits, jobs = engine.request, engine.manager.take_jobs()
    other = engine.compute(PROMPT, to_end=False)
    assert engine.manager.lookup(waits) is None
    engine.release(other)
    for job in jobs:
        engine.end_now(job)
    engine.run()
    engine.check_idle()


def test_after_its_deadline_it_gets_what_host_memory_has() -> None:
    engine = restarted(options=OffloadOptions(promote_deadline=2))
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    jobs = engine.manager.take_jobs()
    for _ in range(2):
        engine.manager.end_schedule(None)
    assert engine.manager.lookup(engine.request) is None
    assert engine.manager.counts.num_deadlines == 1
    for job in jobs:
        engine.end_now(job)
    engine.check_idle()
    assert isinstance(engine.manager.lookup(engine.request), Found)


@pytest.mark.parametrize("status", [Status.MISS, Status.SHORT, Status.CORRUPT])
def test_a_bad_record_is_dropped_and_the_next_look_up_gets_the_next_boundary(
    status: Status,
) -> None:
    engine = restarted()
    engine.look_up(PROMPT, may_wait=True)
    last = engine.cache.tiers.block_hashes(engine.request)[3]

    def fails(job: Job, item: Item, rank: int) -> Status:
        del rank
        is_last = item.key is not None and item.key == (last, 0)
        return status if job.kind is Kind.PROMOTE and is_last else Status.OK

    engine.fails = fails
    engine.run()
    assert engine.manager.counts.drops["disk", Drop.SPOILT] == 1
    assert (last, 0) not in engine.workers[0].records["disk"]
    answers = []
    for _ in range(4):
        answers.append(engine.manager.lookup(engine.request))
        engine.run()
    found = answers[-1]
    assert isinstance(found, Found)
    assert found.num_tokens == 12


def test_a_foreign_record_is_left_where_it_is() -> None:
    engine = restarted()
    engine.fails = failing(Status.FOREIGN, Kind.PROMOTE)
    engine.look_up(PROMPT, may_wait=True)
    before = len(engine.workers[0].records["disk"])
    engine.run()
    assert engine.manager.num_blocks()["disk"] == before - 6
    assert len(engine.workers[0].records["disk"]) == before


def test_who_cannot_wait_gets_one_load_over_both_stages() -> None:
    engine = restarted()
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    assert (found.num_tokens, found.tier) == (16, "disk")
    assert {record.tier for record in found.records} == {"disk"}
    targets = engine.begin(found)
    engine.run()
    assert bytes_of(engine, targets) == [content_of(s.key, 0) for s in found.sources]
    assert engine.manager.num_blocks()["host"] == 6
    assert engine.manager.counts.hits == {"disk": 6}
    engine.check_idle()


def test_a_load_is_larger_than_host_memory() -> None:
    engine = Engine(tiers=DISK)
    engine.forgotten(PROMPT)
    engine.host_slots = 2
    engine.start()
    engine.manager.opened("disk", list(engine.workers[0].records["disk"]))
    engine.cache.tiers.take_findable()
    num_tokens, (report,) = engine.load(PROMPT)
    assert (num_tokens, bool(report.failures)) == (16, False)
    engine.check_idle()


def test_two_loads_read_a_record_once() -> None:
    engine = restarted()
    for _ in range(2):
        found = engine.look_up(PROMPT)
        assert isinstance(found, Found)
        engine.begin(found)
    promoted = [item for job in engine.jobs if job.kind is Kind.PROMOTE for item in job.items]
    assert len(promoted) == 6
    engine.run()
    assert [report.ended for report in engine.manager.take_reports()] == [[0], [1]]
    engine.check_idle()


@pytest.mark.parametrize(
    ("status", "cause", "is_foreign"),
    [
        (Status.MISS, Cause.MISS, False),
        (Status.SHORT, Cause.SHORT, False),
        (Status.CORRUPT, Cause.CORRUPT, False),
        (Status.FOREIGN, Cause.MISS, True),
        (Status.TIMEOUT, Cause.TIMEOUT, False),
        (Status.IO_ERROR, Cause.IO_ERROR, False),
        (Status.FULL, Cause.IO_ERROR, False),
    ],
)
def test_a_record_that_cannot_be_read_is_reported_with_its_cause(
    status: Status, cause: Cause, is_foreign: bool
) -> None:
    engine = restarted()
    engine.fails = failing(status, Kind.PROMOTE, first=1)
    _, (report,) = engine.load(PROMPT)
    ((record, found),) = report.failures.causes.items()
    assert (record.tier, record.is_foreign, found) == ("disk", is_foreign, cause)
    assert report.failures.places == {engine.request: {0: {0}}}
    engine.check_idle()


def test_a_slot_that_cannot_be_copied_to_the_device_is_reported_by_its_rank() -> None:
    engine = Engine(num_ranks=2)
    engine.forgotten(PROMPT)

    def fails(job: Job, item: Item, rank: int) -> Status:
        is_bad = job.kind is Kind.LOAD and rank == 1 and item == job.items[0]
        return Status.IO_ERROR if is_bad else Status.OK

    engine.fails = fails
    _, reports = engine.load(PROMPT)
    assert [report.ended for report in reports] == [[0], [0]]
    assert not reports[0].failures
    assert reports[1].failures.places == {engine.request: {0: {0}}}
    assert {*reports[1].failures.causes.values()} == {Cause.IO_ERROR}


def test_a_load_that_hangs_is_given_up_and_pinned_until_it_is_over() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    (job,) = engine.jobs
    statuses = (Status.TIMEOUT,) * len(job.items)
    hung = JobResult(number=job.number, statuses=statuses, is_over=False)
    engine.manager.finished(0, [hung])
    (report,) = engine.manager.take_reports()
    assert (report.given_up, report.ended) == ([0], ())
    assert engine.manager.num_pinned == 6
    engine.manager.finished(0, [JobResult(number=job.number, statuses=statuses)])
    (report,) = engine.manager.take_reports()
    assert report.ended == [0]
    engine.check_idle()


def test_records_that_do_not_come_in_time_have_failed() -> None:
    engine = restarted(options=OffloadOptions(load_deadline=3))
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.begin(found)
    jobs, engine.jobs = engine.jobs, []
    for _ in range(3):
        engine.step()
    (report,) = engine.manager.take_reports()
    assert {*report.failures.causes.values()} == {Cause.TIMEOUT}
    assert len(report.failures.causes) == 6
    for job in jobs:
        engine.end_now(job)
    engine.check_idle()


def test_a_target_that_the_offer_lacks_is_reported() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    engine.manager.begin_load(7, 9, [Target(1, 0, BlockId(5))], found.request)
    (report,) = engine.manager.take_reports()
    assert report.failures.places == {found.request: {1: {0}}}


def test_an_offer_without_a_load_is_withdrawn() -> None:
    engine = Engine()
    engine.forgotten(PROMPT)
    assert isinstance(engine.look_up(PROMPT), Found)
    assert engine.manager.num_pinned == 6
    engine.manager.end_schedule(None)
    assert engine.manager.counts.num_declined == 1
    engine.check_idle()


def with_a_gap(engine: Engine) -> BlockId:
    """Let the pool lack one block of a prompt that host memory has; return the one after it."""
    request = engine.compute(PROMPT)
    _, lost, after, *_ = engine.cache.blocks(request)[0]
    engine.release(request)
    engine.cache.pool.forget([lost])
    return after


def test_an_offer_that_did_not_fit_is_made_again_at_once_from_host_memory() -> None:
    engine = Engine()
    with_a_gap(engine)
    answers = [engine.look_up(PROMPT)]
    for _ in range(2):
        engine.manager.end_schedule(None)
        answers.append(engine.manager.lookup(engine.request, may_wait=False))
    found = [answer for answer in answers if isinstance(answer, Found)]
    tiers = [[source.tier for source in each.sources] for each in found]
    assert tiers == [["host", "", "", "", ""], ["host"] * 5, ["host", "", "", "", ""]]
    assert [each.num_tokens for each in found] == [16] * 3
    engine.begin(found[-1])
    engine.run()
    engine.check_idle()


def test_an_offer_is_not_made_again_at_once_if_host_memory_lacks_what_the_pool_has() -> None:
    engine = Engine(tiers=DISK)
    (info,) = engine.cache.pool.describe([with_a_gap(engine)])
    assert info.block_hash
    engine.manager.drop(Record("host", BlockKey(info.block_hash, 0).to_bytes()))
    answers = [engine.look_up(PROMPT)]
    for _ in range(2):
        engine.manager.end_schedule(None)
        answers.append(engine.manager.lookup(engine.request, may_wait=False))
    assert [isinstance(answer, Found) for answer in answers] == [True, False, True]


def test_what_fits_without_copies_is_loaded_and_not_computed() -> None:
    engine = Engine(topology=Topology(groups=(FULL,)), num_blocks=9)
    with_a_gap(engine)
    found = engine.look_up(PROMPT)
    assert isinstance(found, Found)
    other = engine.cache.add(range(50, 66))  # It takes four blocks, and two are pinned.
    engine.cache.start_step()
    assert engine.cache.allocate([Need(request=other, num_new_tokens=16)]).num_fit
    engine.write(other)
    needed = engine.cache.blocks_needed(
        Need(
            request=found.request,
            num_new_tokens=0,
            match=found.match,
            num_external_tokens=found.num_external_tokens,
            delay_commit=True,
        )
    )
    assert needed > engine.cache.pool.num_free
    engine.manager.end_schedule(None)
    found = engine.manager.lookup(found.request)
    assert isinstance(found, Found)
    targets = engine.begin(found)
    engine.run()
    assert bytes_of(engine, targets) == [content_of(s.key, 0) for s in found.sources]


def test_refused_and_resting_tiers_are_left_out() -> None:
    engine = restarted(options=OffloadOptions(rest=2))
    request = engine.cache.add(PROMPT)
    lookup = engine.manager.lookup
    assert lookup(request, refused=["disk"], may_wait=False) is None
    assert isinstance(lookup(request, may_wait=False), Found)
    engine.manager.back_off(Record("disk", b"any record"))
    assert lookup(request, may_wait=False) is None
    for _ in range(2):
        engine.manager.end_schedule(None)
    assert isinstance(lookup(request, may_wait=False), Found)
    assert lookup(request, refused=["host"], may_wait=False) is None  # All comes through it.


def test_nothing_is_offered_where_nothing_can_be_loaded_though_the_rule_finds_more() -> None:
    """vLLM finds less than the rule in its pool: before a window of one token it wants a block,
    and of a draft head's group one that lies too far."""
    window = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=1)
    engine = Engine(topology=Topology(groups=(window,)), dialect=EngineDialect.VLLM)
    request = engine.cache.add(PROMPT)
    assert engine.cache.match(request).num_tokens == 0
    assert engine.manager.match_over(request).num_tokens == 16
    assert engine.manager.lookup(request) is None
    draft = replace(FULL, eagle=True)
    engine = Engine(topology=Topology(groups=(FULL, draft)), dialect=EngineDialect.VLLM)
    first = engine.compute(PROMPT)
    engine.cache.pool.forget([engine.cache.blocks(first)[0][2]])
    request = engine.cache.add(PROMPT)
    match, over = engine.cache.match(request), engine.manager.match_over(request, ["host"])
    assert match.num_tokens < over.num_tokens
    assert engine.manager.lookup(request, refused=["host"]) is None


def test_a_request_that_is_forgotten_waits_for_nothing() -> None:
    engine = restarted()
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    engine.manager.forget_request(engine.request)
    assert engine.manager.take_jobs() == []
    engine.check_idle()


def test_a_load_without_an_offer_is_refused() -> None:
    engine = Engine()
    with pytest.raises(InvalidValueError, match="load 0 of request 5 has no offer"):
        engine.manager.begin_load(0, 0, [], 5)


def test_a_block_of_full_attention_alone_needs_no_window() -> None:
    engine = Engine(topology=Topology(groups=(FULL,)))
    for start in count(0, 20):
        engine.forgotten(range(start, start + 9))
        if start > 60:
            break
    assert [engine.load(range(s, s + 9))[0] for s in (0, 20, 40, 60)] == [8] * 4
