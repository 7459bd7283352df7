"""The threads of a tier: what is verified, what is refused, what hangs, and how it is answered."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.record_store import RecordStore, StoreOptions
from kvbraid.transfer.status import Status
from kvbraid.transfer.tier import TierChanges

from tests.reference.memory_tier import MemoryTier
from tests.unit.transfer.faulty_tier import (
    NAMESPACE,
    NOWHERE,
    USED,
    FakeClock,
    FaultyTier,
    Hang,
    block,
    empty,
    ended,
    fail,
    job,
    key,
    run,
)


class Opens(Protocol):
    def __call__(self, tier: MemoryTier, **options: float) -> RecordStore: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def opened(clock: FakeClock) -> Iterator[Opens]:
    """Open stores, and see at the end that none of their threads is left."""
    stores: list[RecordStore] = []

    def open_store(tier: MemoryTier, **options: float) -> RecordStore:
        limits = StoreOptions(**options)  # type: ignore[arg-type]
        stores.append(
            RecordStore(
                "disk", tier, namespace=NAMESPACE, used_bytes=USED, options=limits, clock=clock
            )
        )
        return stores[-1]

    yield open_store
    for store in stores:
        store.check_integrity()
        assert store.close(60.0)
    assert not [each for each in threading.enumerate() if each.name.startswith("kvbraid-")]


def tampered(tier: FaultyTier, which: BlockKey, change: Callable[[bytes], bytes]) -> None:
    tier.records[which] = change(tier.records[which])


# What is verified.


@pytest.mark.parametrize("group", range(len(USED)))
def test_a_block_comes_back_as_it_was_and_its_padding_as_zeros(opened: Opens, group: int) -> None:
    store = opened(MemoryTier())
    loaded = empty(group)
    assert run(store, job(1, Kind.WRITE, key(1, group)), block(1, group)) == (Status.OK,)
    assert run(store, job(2, Kind.PROMOTE, key(1, group)), loaded) == (Status.OK,)
    assert loaded[: USED[group]] == block(1, group)[: USED[group]]
    assert not any(loaded[USED[group] :])
    assert store.keys() == [key(1, group)]


def test_a_job_has_a_status_for_each_of_its_blocks_in_their_order(opened: Opens) -> None:
    store = opened(FaultyTier())
    run(store, job(1, Kind.WRITE, key(1), key(3)), block(1), block(3))
    asked = job(2, Kind.PROMOTE, key(1), key(2), key(3), key(4))
    assert run(store, asked, *(empty() for _ in range(4))) == (
        Status.OK, Status.MISS, Status.OK, Status.MISS,
    )  # fmt: skip
    assert run(store, job(3, Kind.PROMOTE)) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda record: record[:-1], Status.SHORT),
        (lambda record: b"", Status.SHORT),
        (lambda record: bytes(len(record)), Status.CORRUPT),
        (lambda record: record[:50] + b"\xfe" + record[51:], Status.CORRUPT),
        (lambda record: record[:-9] + b"\xfe" + record[-8:], Status.CORRUPT),
    ],
    ids=["cut", "empty", "zeros", "bit of the header", "bit of the payload"],
)
def test_a_record_that_went_bad_is_told_counted_and_dropped(
    opened: Opens, change: Callable[[bytes], bytes], expected: Status
) -> None:
    tier = FaultyTier()
    store = opened(tier)
    run(store, job(1, Kind.WRITE, key(1), key(2)), block(1), block(2))
    tampered(tier, key(1), change)
    asked = job(2, Kind.PROMOTE, key(1), key(2))
    assert run(store, asked, empty(), empty()) == (expected, Status.OK)
    assert [*tier.records] == [key(2)]
    counts = store.counts()
    assert counts.num_bad == counts.blocks[Kind.PROMOTE][expected] == 1


def test_a_record_in_the_place_of_another_one_is_not_served(opened: Opens) -> None:
    tier = FaultyTier()
    store = opened(tier)
    run(store, job(1, Kind.WRITE, key(1), key(2)), block(1), block(2))
    tier.records[key(1)] = tier.records[key(2)]
    assert run(store, job(2, Kind.PROMOTE, key(1)), empty()) == (Status.CORRUPT,)


def test_a_record_of_another_namespace_is_foreign_and_stays(opened: Opens) -> None:
    tier, others = FaultyTier(), MemoryTier()
    store = opened(tier)
    other = RecordStore("disk", others, namespace=replace(NAMESPACE, rank=1), used_bytes=USED)
    run(other, job(1, Kind.WRITE, key(1)), block(1))
    assert other.close()
    tier.records |= others.records
    assert run(store, job(2, Kind.PROMOTE, key(1)), empty()) == (Status.FOREIGN,)
    assert [*tier.records] == [key(1)]
    assert store.counts().num_foreign == 1


def test_a_tier_that_says_ok_and_brings_nothing_is_not_believed(opened: Opens) -> None:
    tier = FaultyTier()
    tier.before["load"] = lambda _: Status.OK
    store = opened(tier)
    assert run(store, job(1, Kind.PROMOTE, key(1)), empty()) == (Status.CORRUPT,)


@pytest.mark.parametrize("answer", ["ok", ["ok"], Status.FOREIGN, Status.TIMEOUT, Status.FULL])
def test_what_is_no_answer_of_a_load_is_an_error(opened: Opens, answer: Status) -> None:
    tier = FaultyTier()
    tier.before["load"] = lambda _: answer
    store = opened(tier)
    assert run(store, job(1, Kind.PROMOTE, key(1)), empty()) == (Status.IO_ERROR,)
    assert "load: the answer" in store.counts().last_error


def test_an_exception_is_an_io_error_and_its_text_is_kept_on_one_line(opened: Opens) -> None:
    tier = FaultyTier()
    store = opened(tier)
    for call in ("store", "load", "drop"):
        tier.before[call] = fail(OSError(5, "Input/output\nerror"))
    assert run(store, job(1, Kind.WRITE, key(1)), block(1)) == (Status.IO_ERROR,)
    assert run(store, job(2, Kind.PROMOTE, key(1)), empty()) == (Status.IO_ERROR,)
    assert run(store, job(3, Kind.DROP, key(1))) == (Status.IO_ERROR,)
    counts = store.counts()
    assert counts.errors == 3
    assert counts.last_error == r"drop: OSError: [Errno 5] Input/output\nerror"


def test_what_is_dropped_is_a_miss(opened: Opens) -> None:
    store = opened(FaultyTier())
    run(store, job(1, Kind.WRITE, key(1)), block(1))
    assert run(store, job(2, Kind.DROP, key(1), key(2))) == (Status.OK, Status.OK)
    assert run(store, job(3, Kind.PROMOTE, key(1)), empty()) == (Status.MISS,)


# What waits.


def test_loads_come_before_drops_and_these_before_stores(opened: Opens) -> None:
    tier = FaultyTier()
    tier.before["load"] = hang = Hang()
    store = opened(tier, num_threads=1, max_hung_threads=1)
    store.submit(job(1, Kind.PROMOTE, key(1)), [empty()])
    assert hang.began.wait(60)
    store.submit(job(2, Kind.WRITE, key(2)), [block(2)])
    store.submit(job(3, Kind.DROP, key(3)))
    store.submit(job(4, Kind.PROMOTE, key(4)), [empty()])
    store.check_integrity()
    hang.end.set()
    assert [result.number for result in ended(store, 4)] == [1, 4, 3, 2]
    assert [name for name, _ in tier.calls] == ["load", "load", "drop", "store"]


def test_what_is_asked_of_one_record_happens_in_the_order_of_asking(opened: Opens) -> None:
    tier = FaultyTier()
    tier.before["store"] = hang = Hang()
    store = opened(tier)
    store.submit(job(1, Kind.WRITE, key(1)), [block(1)])
    assert hang.began.wait(60)
    store.submit(job(2, Kind.DROP, key(1)))
    store.submit(job(3, Kind.PROMOTE, key(1)), [empty()])
    assert run(store, job(4, Kind.PROMOTE, key(2)), empty()) == (Status.MISS,)
    assert tier.calls == [("store", key(1)), ("load", key(2))], "key 1 waits, others do not"
    store.check_integrity()
    hang.end.set()
    answers = {result.number: result.statuses for result in ended(store, 3)}
    assert answers == {1: (Status.OK,), 2: (Status.OK,), 3: (Status.MISS,)}
    assert not tier.records


@pytest.mark.parametrize(
    "limits", [{"max_queued_items": 2}, {"max_queued_bytes": 2 * USED[0] + 1}]
)
def test_what_does_not_fit_in_the_queue_is_answered_full_and_counted(
    opened: Opens, limits: dict[str, float]
) -> None:
    tier = FaultyTier()
    tier.before["store"] = hang = Hang()
    store = opened(tier, num_threads=1, max_hung_threads=1, **limits)
    store.submit(job(1, Kind.WRITE, key(1)), [block(1)])
    assert hang.began.wait(60)
    keys = [key(number) for number in range(2, 6)]
    store.submit(job(2, Kind.WRITE, *keys), [block(number) for number in range(2, 6)])
    counts = store.counts()
    assert (counts.queued_blocks, counts.queued_bytes) == (2, 2 * USED[0])
    assert counts.refused_by_queue == 2
    store.submit(job(3, Kind.PROMOTE, key(9)), [empty()])
    assert store.counts().queued_blocks == 3, "loads have room of their own"
    hang.end.set()
    answers = {result.number: result.statuses for result in ended(store, 3)}
    assert answers[2] == (Status.OK, Status.OK, Status.FULL, Status.FULL)
    assert store.counts().queued_bytes == 0


# What hangs.


def hung(store: RecordStore, clock: FakeClock, hang: Hang) -> JobResult:
    """Let the deadline of the job pass whose call has begun."""
    assert hang.began.wait(60)
    clock.now += 1_000
    (result,) = store.poll()
    return result


def test_a_load_that_hangs_is_answered_at_its_deadline_and_again_when_it_has_ended(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    store = opened(tier, load_deadline_s=5)
    run(store, job(1, Kind.WRITE, key(1), key(2)), block(1), block(2))
    hang = Hang()
    tier.before["load"] = lambda asked: hang(asked) if asked == key(1) else None
    store.submit(job(2, Kind.PROMOTE, key(1), key(2)), [empty(), empty()])
    assert hang.began.wait(60)
    while ("load", key(2)) not in tier.calls or store.counts().bytes[Kind.PROMOTE] == 0:
        store.wait(0.01)
    clock.now += 4.9
    assert store.poll() == []
    clock.now += 0.2
    (first,) = store.poll()
    assert (first.statuses, first.is_over) == ((Status.TIMEOUT, Status.OK), False)
    assert store.counts().hung_threads == 1
    store.check_integrity()
    hang.end.set()
    (last,) = ended(store)
    assert (last.statuses, last.is_over, last.number) == (first.statuses, True, 2)
    counts = store.counts()
    assert (counts.hung_threads, counts.late) == (0, 1)
    assert counts.blocks[Kind.PROMOTE][Status.TIMEOUT] == 1


def test_what_waits_past_its_deadline_never_runs_but_a_drop(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    tier.before["load"] = hang = Hang()
    store = opened(tier, num_threads=2)
    store.submit(job(1, Kind.PROMOTE, key(1)), [empty()])
    store.submit(job(2, Kind.PROMOTE, key(1)), [empty()])
    store.submit(job(3, Kind.WRITE, key(1)), [block(1)])
    store.submit(job(4, Kind.DROP, key(1)))
    assert hang.began.wait(60)
    clock.now += 1_000
    results = {result.number: result for result in store.poll()}
    assert {number: result.is_over for number, result in results.items()} == {
        1: False, 2: True, 3: True, 4: False,
    }  # fmt: skip
    assert {result.statuses for result in results.values()} == {(Status.TIMEOUT,)}
    store.check_integrity()
    hang.end.set()
    assert {(r.number, r.is_over) for r in ended(store, 2)} == {(1, True), (4, True)}
    assert tier.calls == [("load", key(1)), ("drop", key(1))]


def test_a_drop_that_hangs_after_its_deadline_counts_as_hung_at_the_next(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    tier.before["store"], tier.before["drop"] = first, second = Hang(), Hang()
    store = opened(tier, num_threads=1, max_hung_threads=1)
    store.submit(job(1, Kind.WRITE, key(1)), [block(1)])
    store.submit(job(2, Kind.DROP, key(1)))
    assert first.began.wait(60)
    clock.now += 1_000
    assert len(store.poll()) == 2
    first.end.set()
    assert second.began.wait(60)
    assert [result.number for result in ended(store)] == [1]
    assert store.counts().hung_threads == 0
    clock.now += 1_000
    assert store.counts().hung_threads == 1
    second.end.set()
    (result,) = ended(store)
    assert (result.number, result.is_over) == (2, True)


def test_a_tier_of_which_too_many_calls_hang_is_off_until_one_ends(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    hangs = {key(1): Hang(), key(2): Hang()}
    tier.before["load"] = lambda asked: hangs[asked](asked) if asked in hangs else None
    store = opened(tier, num_threads=2, max_hung_threads=2, load_deadline_s=1)
    store.submit(job(1, Kind.PROMOTE, key(1)), [empty()])
    store.submit(job(2, Kind.PROMOTE, key(2)), [empty()])
    assert all(hang.began.wait(60) for hang in hangs.values())
    store.submit(job(3, Kind.WRITE, key(3)), [block(3)])
    clock.now += 2
    results = {result.number: result for result in store.poll()}
    assert {n: r.is_over for n, r in results.items()} == {1: False, 2: False, 3: True}
    store.submit(job(4, Kind.PROMOTE, key(4)), [empty()])
    (result,) = store.poll()
    assert (result.statuses, result.is_over) == ((Status.TIMEOUT,), True)
    store.submit(job(5, Kind.DROP, key(3)))
    assert store.poll() == [], "a drop waits: nothing may bring its record back"
    counts = store.counts()
    assert (counts.is_off, counts.refused_while_off, counts.hung_threads) == (True, 2, 2)
    for hang in hangs.values():
        hang.end.set()
    assert {result.number for result in ended(store, 3)} == {1, 2, 5}
    assert not store.counts().is_off
    assert run(store, job(6, Kind.PROMOTE, key(6)), empty()) == (Status.MISS,)


# What is switched off for a while.


def test_a_full_tier_is_not_asked_to_store_for_a_while_and_loads_go_on(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    store = opened(tier, pause_s=10)
    run(store, job(1, Kind.WRITE, key(1)), block(1))
    tier.max_records = 1
    assert run(store, job(2, Kind.WRITE, key(2)), block(2)) == (Status.FULL,)
    tier.max_records = 9
    assert run(store, job(3, Kind.WRITE, key(2)), block(2)) == (Status.FULL,)
    assert run(store, job(4, Kind.PROMOTE, key(1)), empty()) == (Status.OK,)
    counts = store.counts()
    assert (counts.is_paused, counts.refused_by_pause) == (True, 1)
    clock.now += 11
    assert run(store, job(5, Kind.WRITE, key(2)), block(2)) == (Status.OK,)
    assert not store.counts().is_paused


def test_three_errors_in_a_row_switch_stores_off_for_a_while(
    opened: Opens, clock: FakeClock
) -> None:
    tier = FaultyTier()
    store = opened(tier, pause_s=10, errors_in_a_row=3)

    def attempt(number: int, *, fails: bool) -> Status:
        tier.before = {"store": fail(OSError(5, "EIO"))} if fails else {}
        (status,) = run(store, job(number, Kind.WRITE, key(number)), block(number))
        return status

    assert [attempt(n, fails=n != 3) for n in range(1, 6)] == [
        Status.IO_ERROR, Status.IO_ERROR, Status.OK, Status.IO_ERROR, Status.IO_ERROR,
    ]  # fmt: skip
    assert not store.counts().is_paused
    assert attempt(6, fails=True) is Status.IO_ERROR
    assert attempt(7, fails=False) is Status.IO_ERROR, "it is not tried"
    assert store.counts().refused_by_pause == 1
    clock.now += 11
    assert attempt(8, fails=False) is Status.OK


def test_stores_that_waited_when_a_tier_got_full_are_not_tried(opened: Opens) -> None:
    tier = FaultyTier()
    tier.before["store"] = hang = Hang()
    tier.max_records = 0
    store = opened(tier, num_threads=1, max_hung_threads=1)
    store.submit(job(1, Kind.WRITE, key(1), key(2), key(3)), [block(n) for n in (1, 2, 3)])
    assert hang.began.wait(60)
    hang.end.set()
    (result,) = ended(store)
    assert result.statuses == (Status.FULL,) * 3
    assert tier.calls == [("store", key(1))]


# What others do to a tier.


class SharedMemory(FaultyTier):
    """A tier that others use."""

    def __init__(self) -> None:
        super().__init__()
        self.news = [TierChanges((key(1), key(2)), ()), TierChanges((key(3),), (key(1),))]

    def refresh(self) -> TierChanges:
        self._first("refresh", key(0))
        return self.news.pop(0)


def looked(store: RecordStore, tier: FaultyTier, count: int) -> None:
    """Let a thread look for changes, and wait until it has."""
    store.refresh()
    while len([name for name, _ in tier.calls if name == "refresh"]) < count:
        store.wait(0.01)
    run(store, job(count, Kind.DROP, key(100)))


def test_changes_by_others_are_looked_for_on_a_thread_and_handed_out_once(opened: Opens) -> None:
    tier = SharedMemory()
    store = opened(tier, num_threads=1, max_hung_threads=1)
    looked(store, tier, 1)
    looked(store, tier, 2)
    changes = store.take_changes()
    assert set(changes.added) == {key(2), key(3)}
    assert changes.removed == (key(1),)
    assert store.take_changes() == TierChanges((), ())
    looked(store, tier, 3)
    assert "IndexError" in store.counts().last_error, "the thread has survived it"


def test_a_look_that_hangs_is_a_thread_that_hangs(opened: Opens, clock: FakeClock) -> None:
    tier = SharedMemory()
    tier.before["refresh"] = hang = Hang()
    store = opened(tier)
    store.refresh()
    assert hang.began.wait(60)
    tier.before["refresh"] = again = Hang()
    store.refresh()
    clock.now += 1_000
    assert store.counts().hung_threads == 1
    assert [name for name, _ in tier.calls] == ["refresh"], "one thread at a time looks"
    hang.end.set()
    assert again.began.wait(60), "and then looks for whoever asked meanwhile"
    again.end.set()
    assert store.counts().hung_threads == 0


def test_a_tier_without_others_is_not_looked_at(opened: Opens) -> None:
    store = opened(FaultyTier())
    store.refresh()
    assert store.take_changes() == TierChanges((), ())


# The end.


def test_the_end_finishes_what_waits_and_closes_the_tier(opened: Opens) -> None:
    tier = FaultyTier()
    store = opened(tier, num_threads=2)
    store.submit(job(1, Kind.WRITE, *map(key, range(9))), [block(n) for n in range(9)])
    assert store.close(60)
    (result,) = store.poll()
    assert result.statuses == (Status.OK,) * 9
    assert not tier.is_open
    store.submit(job(2, Kind.WRITE, key(1)), [block(1)])
    store.submit(job(3, Kind.DROP, key(1)))
    assert {r.statuses for r in store.poll()} == {(Status.TIMEOUT,)}


def test_an_end_with_a_call_that_hangs_answers_everything_and_leaves_one_thread(
    opened: Opens,
) -> None:
    tier = FaultyTier()
    tier.before["store"] = hang = Hang()
    store = opened(tier)
    store.submit(job(1, Kind.WRITE, key(1)), [block(1)])
    store.submit(job(2, Kind.DROP, key(1)))
    assert hang.began.wait(60)
    assert not store.close(0)
    assert {(r.number, r.statuses, r.is_over) for r in store.poll()} == {
        (1, (Status.TIMEOUT,), False), (2, (Status.TIMEOUT,), True),
    }  # fmt: skip
    assert tier.is_open
    threads = [t for t in threading.enumerate() if t.name.startswith("kvbraid-disk")]
    while sum(thread.is_alive() for thread in threads) > 1:
        for thread in threads:  # All leave but the one that hangs.
            thread.join(0.01)
    hang.end.set()
    (result,) = ended(store)
    assert (result.number, result.is_over) == (1, True)
    assert store.close(60)
    assert not tier.is_open


# What is refused.


@pytest.mark.parametrize(
    ("asked", "payloads", "message"),
    [
        (job(1, Kind.LOAD, key(1)), [empty()], "job 1 is a load; a tier has no such jobs"),
        (job(1, Kind.WRITE, key(1)), [], "job 1 has 0 buffers; expected 1"),
        (job(1, Kind.DROP, key(1)), [empty()], "job 1 has 1 buffers; expected 0"),
        (job(1, Kind.WRITE, key(1, 3)), [empty()], "expected a key of 3 groups"),
        (
            Job(number=1, kind=Kind.DROP, items=(Item(0, NOWHERE, NOWHERE),)),
            [],
            "names None; expected a key",
        ),
        (job(1, Kind.WRITE, key(1)), [empty(2)], "has 4096 bytes; expected 8192"),
        (job(1, Kind.WRITE, key(1)), [empty().toreadonly()], "writable and contiguous"),
    ],
)
def test_a_job_that_is_none_is_refused(
    opened: Opens, asked: Job, payloads: list[memoryview], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        opened(MemoryTier()).submit(asked, payloads)


def test_a_number_is_of_one_job_at_a_time(opened: Opens) -> None:
    tier = FaultyTier()
    tier.before["drop"] = hang = Hang()
    store = opened(tier)
    store.submit(job(1, Kind.DROP, key(1)))
    with pytest.raises(InvalidValueError, match="job 1 is not over"):
        store.submit(job(1, Kind.DROP, key(2)))
    hang.end.set()
    ended(store)
    assert run(store, job(1, Kind.DROP, key(1))) == (Status.OK,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "StoreOptions.num_threads is 0"),
        ({"load_deadline_s": 0}, "load_deadline_s is 0; expected more than 0 s"),
        ({"num_threads": 2, "max_hung_threads": 3}, "3 of 2 threads; expected at most all"),
    ],
)
def test_options_out_of_their_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        StoreOptions(**options)


def test_a_tier_that_cannot_be_opened_leaves_no_thread() -> None:
    class Closed(MemoryTier):
        def open(self, namespace: object) -> None:
            raise InvalidValueError("the folder is not there; make it")

    with pytest.raises(InvalidValueError, match="make it"):
        RecordStore("disk", Closed(), namespace=NAMESPACE, used_bytes=USED)
    assert not [each for each in threading.enumerate() if each.name.startswith("kvbraid-")]
