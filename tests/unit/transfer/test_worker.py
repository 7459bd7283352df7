"""A worker answers every job with one status per item, whatever happens to its parts."""

import threading
from dataclasses import replace

import pytest
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Item, JobResult, Kind
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from tests.unit.transfer.pools import Pool, arena, contents, hybrid_plan, mover_of
from tests.unit.transfer.workers import FakeRecords, LateEngine, item, job, key, rank

OK, FULL, IO_ERROR, MISS = Status.OK, Status.FULL, Status.IO_ERROR, Status.MISS


def test_blocks_of_three_groups_come_back_from_a_tier_as_they_were() -> None:
    with rank() as one:
        before = one.pool.content
        blocks = [(0, 3), (1, 5), (2, 2), (0, 7)]
        store = job(Kind.STORE, *(item(g, b, s + 1) for s, (g, b) in enumerate(blocks)))
        stored = one.ended(store)
        assert stored.statuses == (OK,) * 4
        used = [group.used_bytes for group in one.pool.plan.groups]
        assert stored.num_bytes == sum(used[group] for group, _ in blocks)
        keys = [key(str(block), group) for group, block in blocks]
        items = [item(each.group, s + 1, 0, each) for s, each in enumerate(keys)]
        assert one.ended(job(Kind.WRITE, *items)).statuses == (OK,) * 4
        for each in one.pool.memory:
            each[64:-64] = 0
        for slot in range(1, 5):
            one.host.payload(slot, 0)[:] = bytes(len(one.host.payload(slot, 0)))
        items = [item(each.group, 0, s + 1, each) for s, each in enumerate(keys)]
        assert one.ended(job(Kind.PROMOTE, *items)).statuses == (OK,) * 4
        load = job(Kind.LOAD, *(item(g, s + 1, b) for s, (g, b) in enumerate(blocks)))
        assert one.ended(load).statuses == (OK,) * 4
        for group, block in blocks:
            for reference in one.pool.plan.groups[group].references:
                for offset, length in reference.exact():
                    start = block * reference.block_stride + offset
                    got, was = one.pool.content[reference.buffer], before[reference.buffer]
                    assert got[start : start + length] == was[start : start + length]
        assert one.ended(job(Kind.DROP, item(0, 0, 0, keys[0]))).statuses == (OK,)
        assert keys[0] not in one.records.records
        assert one.worker.idle


@pytest.mark.parametrize(
    ("kind", "bad", "status", "reason"),
    [
        (Kind.STORE, item(0, 0, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, 8, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, -1, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(3, 1, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(-1, 1, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, 1, 0), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, 1, 6), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, 1 << 70, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, 1.0, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, "1", 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, None, 1), IO_ERROR, "bad_item"),
        (Kind.STORE, item(0, [1, 2], 1), IO_ERROR, "bad_item"),
        (Kind.LOAD, item(0, 1, 0), IO_ERROR, "bad_item"),
        (Kind.LOAD, item(0, 6, 1), IO_ERROR, "bad_item"),
        (Kind.COPY, item(0, 1, 8), IO_ERROR, "bad_item"),
        (Kind.WRITE, item(0, 1, 0), IO_ERROR, "bad_item"),  # It has no key.
        (Kind.WRITE, item(0, 0, 0, key("a")), IO_ERROR, "bad_item"),
        (Kind.PROMOTE, item(0, 0, 6, key("a")), IO_ERROR, "bad_item"),
        (Kind.PROMOTE, item(0, 0, 1, key("nowhere")), MISS, "miss"),
        (Kind.DROP, item(0, 0, 0), IO_ERROR, "bad_item"),
    ],
)
def test_a_bad_item_fails_alone_and_is_counted(
    kind: Kind, bad: Item, status: Status, reason: str
) -> None:
    good = {
        Kind.STORE: item(1, 4, 2),
        Kind.LOAD: item(1, 2, 4),
        Kind.COPY: item(1, 4, 5),
        Kind.WRITE: item(1, 2, 0, key("b", 1)),
        Kind.PROMOTE: item(1, 0, 2, key("c", 1)),
        Kind.DROP: item(1, 0, 0, key("b", 1)),
    }[kind]
    with rank() as one:
        one.records.records[key("c", 1)] = bytes(one.host.slots.payload_bytes(1))
        assert one.ended(job(kind, bad, good, bad)).statuses == (status, OK, status)
        assert one.worker.failures[reason] == 2
        assert one.worker.failures.total() == 2


def test_a_job_without_items_is_answered() -> None:
    with rank() as one:
        for number, kind in enumerate(Kind):
            assert one.ended(job(kind, number=number)).statuses == ()


def test_a_tier_that_nobody_knows_fails_every_item() -> None:
    with rank() as one:
        write = job(Kind.WRITE, item(0, 1, 0, key("a")), item(0, 2, 0, key("b")), tier="tape")
        assert one.ended(write).statuses == (IO_ERROR, IO_ERROR)
        assert one.worker.failures == {"tier": 2}


def test_a_slot_whose_piece_is_not_made_yet_is_full_for_who_fills_it() -> None:
    """Pinning is held back after the first piece, so two of five slots are ready."""
    held, pool = Gate(), Pool.of(hybrid_plan())
    slot_bytes = HostSlots.of(pool.plan, 1 << 40).slot_bytes
    slots = HostSlots.of(pool.plan, 5 * slot_bytes)
    host = HostTier(slots, piece_bytes=2 * slot_bytes, pinning=held)
    assert held.is_waiting.wait(60)
    worker = Worker(mover_of(pool, host), {"disk": FakeRecords()})
    assert host.num_ready_slots == 2
    host.check_integrity()
    worker.submit([job(Kind.STORE, item(0, 1, 2), item(0, 2, 3))])
    worker.submit([job(Kind.PROMOTE, item(0, 0, 5, key("a")), number=2)])
    statuses = {each.number: each.statuses for each in worker.poll()}
    assert statuses == {1: (OK, FULL), 2: (FULL,)}
    worker.submit([job(Kind.LOAD, item(0, 2, 1), item(0, 3, 2))])
    assert worker.poll()[0].statuses == (OK, FULL)
    assert worker.failures == {"not_ready": 3}
    held.may_go_on.set()
    assert host.wait(60)
    worker.submit([job(Kind.STORE, item(0, 2, 3), item(2, 1, 5))])
    assert worker.poll()[0].statuses == (OK, OK)
    worker.close()


class Gate:
    """Pinning that lets the first piece pass, and the others when a test says so."""

    def __init__(self) -> None:
        self.is_waiting, self.may_go_on = threading.Event(), threading.Event()
        self.num_pinned = 0

    def pin(self, address: int, size_bytes: int) -> None:
        self.num_pinned += 1
        if self.num_pinned > 1:
            self.is_waiting.set()
            self.may_go_on.wait(60)

    def unpin(self, address: int) -> None:
        self.num_pinned -= 1


def test_a_job_is_answered_once_its_copies_have_ended() -> None:
    engine = LateEngine()
    with rank(engine) as one:
        one.worker.submit([job(Kind.STORE, item(0, 1, 1), item(1, 2, 2), number=7)])
        assert one.worker.poll() == []
        assert one.worker.num_pending == 1
        engine.is_over = True
        [result] = one.worker.poll()
        assert (result.number, result.statuses) == (7, (OK, OK))
        assert one.worker.idle


def test_a_mechanism_that_raises_fails_its_group_and_no_other() -> None:
    engine = LateEngine()
    with rank(engine) as one:
        engine.refused_group, engine.failing_group = 0, 2
        items = item(0, 1, 1), item(1, 2, 2), item(2, 3, 3), item(0, 4, 4)
        one.worker.submit([job(Kind.STORE, *items)])
        engine.is_over = True
        [result] = one.worker.poll()
        assert result.statuses == (IO_ERROR, OK, IO_ERROR, IO_ERROR)
        assert result.num_bytes == one.pool.plan.groups[1].used_bytes
        assert one.worker.failures == {"copy": 3}
        assert one.worker.idle


def test_records_that_raise_fail_their_items_and_polls_go_on() -> None:
    with rank() as one:
        write = job(Kind.WRITE, item(0, 1, 0, key("a")))
        one.records.refuses = True
        assert one.ended(write).statuses == (IO_ERROR,)
        one.records.refuses, one.records.fails_polls = False, True
        one.worker.submit([replace(write, number=2), job(Kind.STORE, item(0, 1, 1), number=3)])
        assert [each.number for each in one.worker.poll()] == [3]
        one.records.fails_polls = False
        assert [each.number for each in one.worker.poll()] == [2]
        assert one.worker.failures == {"records": 1, "polls": 1}


def test_answers_that_nobody_asked_for_are_counted_and_answer_nothing() -> None:
    with rank() as one:
        one.worker.submit([job(Kind.WRITE, item(0, 1, 0, key("a")), number=4)])
        one.records.answers = [
            JobResult(number=5, statuses=(OK,)),
            JobResult(number=4, statuses=(OK, OK)),
        ]
        [result] = one.worker.poll()
        assert (result.number, result.statuses) == (4, (IO_ERROR,))
        assert one.worker.failures == {"records": 2, "io_error": 1}


def test_a_call_that_hangs_is_answered_before_it_is_over_and_once_more_after() -> None:
    with rank() as one:
        one.worker.submit([job(Kind.WRITE, item(0, 9, 0, key("a")), item(0, 1, 0, key("b")))])
        one.records.answers = [JobResult(number=1, statuses=(Status.TIMEOUT,), is_over=False)]
        [early] = one.worker.poll()
        assert early.statuses == (IO_ERROR, Status.TIMEOUT)
        assert not early.is_over
        assert one.worker.num_pending == 1
        one.records.answers = [replace(early, statuses=(Status.TIMEOUT,), is_over=True)]
        [last] = one.worker.poll()
        assert last.statuses == early.statuses
        assert last.is_over
        assert one.worker.idle
        assert one.worker.failures == {"bad_item": 1, "timeout": 1}


def test_a_tier_that_cannot_be_closed_keeps_nothing_else_open() -> None:
    class Stuck(FakeRecords):
        def close(self) -> None:
            raise OSError("busy")

    pool = Pool.of(hybrid_plan())
    host, records = arena(pool.plan), FakeRecords()
    worker = Worker(mover_of(pool, host), {"a": records, "b": Stuck(), "c": FakeRecords()})
    with pytest.raises(OSError, match="busy"):
        worker.close()
    assert records.is_closed
    assert host.num_ready_slots == 0


def test_nothing_is_left_after_a_close() -> None:
    before = threading.active_count()
    engine = LateEngine()
    with rank(engine) as one:
        one.worker.submit([job(Kind.STORE, item(0, 1, 1))])
        one.worker.submit([job(Kind.WRITE, item(0, 1, 0, key("a")), number=2)])
        payload = one.host.payload(1, 0)
        was = contents(one.host)[1][: len(payload)]
    assert one.worker.idle
    assert one.worker.poll() == []
    assert one.host.num_ready_slots == 0
    assert bytes(payload) == was, "who still holds a payload may go on reading it"
    assert threading.active_count() == before
