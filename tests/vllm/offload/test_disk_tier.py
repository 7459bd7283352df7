"""Our records below vLLM's own tiered offloading: what is served, and whatever goes wrong."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.vllm import drop_in_pair  # noqa: F401 - imports vLLM with its warnings off.

if True:  # Only afterwards.
    from kvbraid.integrations.vllm.disk_tier import tier as tier_module
    from kvbraid.transfer.disk import tier as disk_module
    from vllm.v1.kv_offload.base import LookupResult
    from vllm.v1.kv_offload.config import OffloadingModelConfig

    from tests.vllm.offload.stock_tiers import (
        FROM_DISK,
        NUM_ROWS,
        RECORD_BYTES,
        StockTiers,
        changed,
        config,
        content,
        entry,
        files,
        key,
        told,
    )

HIT, MISS, PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
PATIENCE_S = 60.0
BLOCKS, REFUSED = "kvbraid_disk_blocks", "kvbraid_disk_refused_blocks"


class Starts(Protocol):
    def __call__(self, *, tells: bool = False, **options: object) -> StockTiers: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starts]:
    """Start engines on one directory; at the end none of their threads may be left."""
    started: list[StockTiers] = []

    def start_one(*, tells: bool = False, **options: object) -> StockTiers:
        started.append(StockTiers(tmp_path, tells=tells, **options))
        return started[-1]

    yield start_one
    for each in started:
        each.close()
    assert not own_threads()


def own_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("kvbraid-")]


class Gate:
    """Calls of the file system that wait until it opens; those of `only` alone, if it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.only: bytes | None = None
        self.began = threading.Event()
        self._open = threading.Event()
        call = getattr(disk_module, name)

        def waiting(place: int, file: str, *rest: object, direct: bool) -> object:
            if self.only is None or file.startswith(self.only[:-4].hex()):
                self.began.set()
                assert self._open.wait(PATIENCE_S)
            return call(place, file, *rest, direct=direct)

        monkeypatch.setattr(disk_module, name, waiting)

    def open(self) -> None:
        self._open.set()


def test_what_was_evicted_from_host_memory_comes_back_from_disk(start: Starts) -> None:
    tiers = start()
    tiers.store(0, 1, 2)
    tiers.forget()
    assert tiers.look_up(0, 1, 2, 3) == [PENDING, PENDING, PENDING, MISS]
    assert tiers.load(0, 1, 2, 3) == {number: content(number) for number in (0, 1, 2)}
    tiers.forget()
    assert tiers.load(1) == {1: content(1)}
    assert tiers.sources == FROM_DISK


def test_a_chunk_that_is_there_is_not_written_again(start: Starts) -> None:
    tiers = start()
    tiers.store(0)
    tiers.forget()
    tiers.store(0, 1)
    assert tiers.counts[BLOCKS, "write", "ok"] == 2


def flip_payload(path: Path) -> None:
    flip(path, 4_096 + 5_000)


def flip_header(path: Path) -> None:
    flip(path, 40)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1_000])


def vanish(path: Path) -> None:
    path.unlink()


def swap(path: Path) -> None:
    """Put another block's record into its place."""
    other = files(path.parents[2])[key(2)]
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("damage", "status"),
    [
        (flip_payload, "corrupt"),
        (flip_header, "corrupt"),
        (swap, "corrupt"),
        (cut, "short"),
        (vanish, "miss"),
    ],
)
def test_a_record_that_is_no_good_is_a_miss_and_the_others_of_its_load_come(
    start: Starts, tmp_path: Path, damage: Callable[[Path], None], status: str
) -> None:
    tiers = start(tells=True)
    tiers.store(0, 1, 2)
    tiers.forget()
    damage(files(tmp_path)[key(1)])
    assert tiers.load(0, 1, 2) == {0: content(0), 2: content(2)}
    tiers.settle()
    assert tiers.counts[BLOCKS, "promote", status] == 1
    assert tiers.counts[BLOCKS, "promote", "ok"] == 2
    assert key(1) not in files(tmp_path)
    assert tiers.look_up(1) == [MISS], "it would be asked for again and again"
    assert told(tiers.store(1)) == {key(1)}
    tiers.forget()
    assert tiers.load(1) == {1: content(1)}


def test_what_is_no_good_is_retracted(start: Starts, tmp_path: Path) -> None:
    tiers = start(tells=True)
    assert told(tiers.store(0, 1)) == {key(0), key(1)}
    tiers.forget()
    flip_payload(files(tmp_path)[key(1)])
    assert tiers.look_up(0, 1) == [PENDING, PENDING]
    assert told(tiers.settle(), removed=True) == {key(1)}


def test_a_record_of_another_configuration_is_never_served(start: Starts, tmp_path: Path) -> None:
    tiers = start()
    tiers.store(0)
    made = changed(config(entry(tmp_path)), model=OffloadingModelConfig(name="model", dtype="fp8"))
    other = StockTiers.of(made)
    try:
        assert other.look_up(0) == [MISS]
        other.store(1)
        place = files(tmp_path)[key(1)]
        theirs = place.parents[1]
        (ours,) = {path.parents[1] for path in files(tmp_path).values()} - {theirs}
        target = ours / place.relative_to(theirs)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(place.read_bytes())
    finally:
        other.close()
    again = start()
    assert again.load(0, 1) == {0: content(0)}
    again.settle()
    assert again.counts[BLOCKS, "promote", "foreign"] == 1


def test_the_directory_stays_below_its_limit_and_what_was_evicted_is_a_miss(
    start: Starts, tmp_path: Path
) -> None:
    tiers = start(disk_bytes=10 * RECORD_BYTES)
    for first in range(0, 40, 4):
        tiers.store(*range(first, first + 4))
        assert sum(path.stat().st_size for path in files(tmp_path).values()) <= 10 * RECORD_BYTES
    assert tiers.counts["kvbraid_disk_evicted_records",] == 40 - len(files(tmp_path)) >= 30
    tiers.forget()
    left = {number for number in range(40) if key(number) in files(tmp_path)}
    for number in range(40):
        expected = {number: content(number)} if number in left else {}
        assert tiers.load(number) == expected


def test_a_restart_announces_and_serves_what_is_there(start: Starts) -> None:
    first = start()
    for number in range(5):
        first.store(number)
    second = start(tells=True, locality="LOCAL")
    (event,) = second.step()
    assert set(event.keys) == {key(number) for number in range(5)}
    assert (event.medium.value, event.removed, event.locality.value, event.ownership) == (
        "STORAGE", False, "LOCAL", "KvbraidDiskTier",
    )  # fmt: skip
    assert second.step() == []
    for number in range(5):
        assert second.load(number) == {number: content(number)}


def test_a_long_announcement_takes_several_steps_which_an_idle_engine_makes(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "_NEWS_PER_STEP", 2)
    first = start()
    for number in range(5):
        first.store(number)
    second = start(tells=True)
    parts = []
    while second.manager.has_pending_work():
        parts.append(told(second.step()))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert set().union(*parts) == {key(number) for number in range(5)}


def test_an_engine_without_events_keeps_none(start: Starts) -> None:
    start().store(0)
    second = start()
    assert not second.manager.has_pending_work()
    assert second.store(1) == []


def test_two_engines_on_one_directory_hear_of_each_others_records(
    start: Starts, tmp_path: Path
) -> None:
    first = start()
    second = start(tells=True, disk_scan_seconds=0.001)
    first.store(0, 1)
    heard: set[bytes] = set()
    while heard != {key(0), key(1)}:
        heard |= told(second.step())
    assert second.load(0, 1) == {0: content(0), 1: content(1)}
    second.settle()
    second.forget()
    for path in files(tmp_path).values():
        path.unlink()
    while heard:
        heard -= told(second.step(), removed=True)
    assert second.look_up(0, 1) == [MISS, MISS]


def test_what_has_no_room_in_the_queue_is_not_stored_and_counted(
    start: Starts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(monkeypatch, "write_record")
    tiers = start()
    tiers.begin_store(range(NUM_ROWS))
    assert gate.began.wait(PATIENCE_S)
    gate.open()
    tiers.settle()
    assert tiers.counts[REFUSED, "queue"] == NUM_ROWS // 2
    assert len(files(tmp_path)) == NUM_ROWS // 2
    tiers.store(*range(NUM_ROWS))
    assert len(files(tmp_path)) == NUM_ROWS // 2, "vLLM offers a chunk once while it has it"
    tiers.forget()
    tiers.store(*range(NUM_ROWS // 2), *range(NUM_ROWS // 2, NUM_ROWS))
    assert len(files(tmp_path)) == NUM_ROWS


def test_a_read_that_hangs_is_a_miss_at_its_deadline_and_never_writes_again(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = start(disk_load_seconds=0.1)
    tiers.store(0, 1, 2)
    tiers.forget()
    gate = Gate(monkeypatch, "read_record")
    gate.only = key(1)
    assert tiers.load(0, 1, 2) == {0: content(0), 2: content(2)}
    tiers.step()
    assert tiers.counts[BLOCKS, "promote", "timeout"] == 1
    assert tiers.counts["kvbraid_disk_hung_threads",] == 1
    assert tiers.look_up(1) == [MISS]
    others = range(10, 10 + NUM_ROWS)
    for number in others:  # They take every row, that of the hung read as well.
        tiers.store(number)
    gate.open()
    while tiers.counts["kvbraid_disk_hung_threads",]:
        tiers.step()
    assert tiers.load(*others) == {number: content(number) for number in others}
    tiers.store(1)
    tiers.forget()
    assert tiers.load(1) == {1: content(1)}, "it can be read again"


def test_after_three_loads_that_brought_nothing_the_disk_is_not_asked(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = start(rest_seconds=3_600.0)
    tiers.store(0, 1, 2, 3)
    tiers.forget()

    def failing(*given: object, direct: bool) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "read_record", failing)
        for number in range(3):
            assert tiers.load(number) == {}
    tiers.step()
    assert tiers.counts[BLOCKS, "promote", "io_error"] == 3
    assert tiers.look_up(3) == [MISS]


def test_a_write_that_hangs_keeps_its_rows_until_it_has_ended(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "write_record")
    tiers = start(disk_store_seconds=0.05)
    tiers.begin_store([0])
    assert gate.began.wait(PATIENCE_S)
    while not tiers.counts["kvbraid_disk_hung_threads",]:
        tiers.step()
    assert tiers.manager.has_pending_work()
    for number in range(1, 1 + 2 * NUM_ROWS):
        tiers.begin_store([number])
        tiers.step()
    gate.open()
    tiers.settle()
    assert tiers.load(0) == {0: content(0)}, "it was not evicted"


def test_a_shutdown_leaves_a_hung_read_alone_and_its_thread_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = StockTiers(tmp_path, disk_load_seconds=0.05)
    tiers.store(0)
    tiers.forget()
    gate = Gate(monkeypatch, "read_record")
    assert tiers.load(0) == {}
    tiers.close()
    assert own_threads(), "nobody waits for a call that hangs"
    gate.open()
    for thread in own_threads():
        thread.join(PATIENCE_S)
    assert not own_threads()


def test_a_reset_waits_for_what_moves(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write_record")
    tiers = start()
    tiers.begin_store([0, 1])
    assert gate.began.wait(PATIENCE_S)
    timer = threading.Timer(0.05, gate.open)
    timer.start()
    tiers.forget()
    timer.join()
    assert tiers.load(0, 1) == {0: content(0), 1: content(1)}
    assert tiers.sources == FROM_DISK


def test_counters_are_reported_once_a_second_at_most(start: Starts) -> None:
    tiers = start()
    tiers.tier.report_seconds = 3_600.0
    tiers.step()
    tiers.store(0)
    assert tiers.tier.get_stats() is None
    assert tiers.counts[BLOCKS, "write", "ok"] == 0
