"""One rank with all its real parts: blocks go to files, and come back in another life."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvbraid.layout import Layout
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import padded
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from tests.reference.mover_model import MoverModel
from tests.unit.transfer.faulty_tier import NAMESPACE, key
from tests.unit.transfer.pools import Pool, arena, hybrid_plan, mover_of
from tests.unit.transfer.workers import item, job

OK = Status.OK
BLOCKS = ((0, 3), (1, 5), (2, 2), (0, 7), (2, 6))
"""Group and id of what is stored."""
OTHERS = ((0, 1), (1, 2), (2, 7), (0, 5), (2, 3))
"""Where it is loaded to in another life."""


@dataclass(slots=True)
class Life:
    """A worker over a pool of its own, and the records of a directory."""

    pool: Pool
    disk: DiskTier
    records: RecordStore
    worker: Worker

    def ended(self, asked: Job) -> JobResult:
        """Run a job to its end."""
        self.worker.submit([asked])
        results: list[JobResult] = []
        while not self.worker.idle:
            results += self.worker.poll()
        [result] = results
        assert result.number == asked.number
        assert result.is_over
        return result

    def statuses(self, kind: Kind, *items: Item) -> tuple[Status, ...]:
        return self.ended(job(kind, *items)).statuses

    def model(self) -> MoverModel:
        return MoverModel(self.pool.plan, self.pool.content, {})


@contextmanager
def life(directory: Path, layout: Layout, seed: int) -> Iterator[Life]:
    before = threading.active_count()
    pool = Pool.of(hybrid_plan(layout), seed)
    host, disk = arena(pool.plan), DiskTier(directory, max_bytes=1 << 30)
    used = [group.used_bytes for group in pool.plan.groups]
    records = RecordStore("disk", disk, namespace=NAMESPACE, used_bytes=used)
    worker = Worker(mover_of(pool, host), {"disk": records})
    yield Life(pool, disk, records, worker)
    host.check_integrity()
    records.check_integrity()
    disk.check_integrity()
    worker.close()
    pool.check_margins()
    assert threading.active_count() == before, "threads are left"


def keys() -> list[BlockKey]:
    return [key(number, group) for number, (group, _) in enumerate(BLOCKS)]


def store_and_write(one: Life) -> None:
    stored = one.ended(job(Kind.STORE, *(item(g, b, s) for s, (g, b) in enumerate(BLOCKS, 1))))
    assert stored.statuses == (OK,) * 5
    written = [item(each.group, slot, 0, each) for slot, each in enumerate(keys(), 1)]
    assert one.statuses(Kind.WRITE, *written) == (OK,) * 5


def bytes_of(model: MoverModel, group: int, block: int) -> bytes:
    return b"".join(bytes(model.pool[at][run]) for at, run in model.runs(group, block))


@pytest.mark.parametrize("layout", [Layout.BLHNC, Layout.LBHNC])
def test_blocks_come_back_from_a_directory_in_another_life(tmp_path: Path, layout: Layout) -> None:
    with life(tmp_path, layout, seed=1) as first:
        before = first.model()
        store_and_write(first)
        assert first.pool.content == [bytes(each) for each in before.pool]
        used = [group.used_bytes for group in first.pool.plan.groups]
        counts = first.records.counts()
        assert counts.blocks[Kind.WRITE][OK] == first.disk.counts().records == 5
        assert counts.bytes[Kind.WRITE] == sum(padded(used[group]) for group, _ in BLOCKS)
        assert not first.worker.failures
    with life(tmp_path, layout, seed=2) as second:
        assert {*second.records.keys()} == {*keys()}
        unlike = second.model()
        slots = (4, 1, 5, 2, 3)
        asked = [item(k.group, 0, s, k) for s, k in zip(slots, keys(), strict=True)]
        assert second.statuses(Kind.PROMOTE, *asked) == (OK,) * 5
        loads = [item(g, s, b) for s, (g, b) in zip(slots, OTHERS, strict=True)]
        loaded = second.ended(job(Kind.LOAD, *loads))
        assert loaded.statuses == (OK,) * 5
        assert loaded.num_bytes == sum(used[group] for group, _ in OTHERS)
        after = second.model()
        for (group, block), (_, target) in zip(BLOCKS, OTHERS, strict=True):
            content = bytes_of(before, group, block)
            assert bytes_of(after, group, target) == content
            for (at, run), (_, was) in zip(
                unlike.runs(group, target), before.runs(group, block), strict=True
            ):
                unlike.pool[at][run] = before.pool[at][was]
        assert after.pool == unlike.pool, "nothing else has changed"
        assert second.records.counts().blocks[Kind.PROMOTE][OK] == 5
        assert not second.worker.failures


def test_what_was_spoilt_between_two_lives_is_not_loaded(tmp_path: Path) -> None:
    with life(tmp_path, Layout.BLHNC, seed=1) as first:
        store_and_write(first)
    files = {path.name.split("-")[0]: path for path in tmp_path.glob("*/*/*-*")}
    flipped, cut, gone = (files[each.block_hash.hex()] for each in keys()[:3])
    content = bytearray(flipped.read_bytes())
    content[4_096] ^= 1
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-1])
    gone.unlink()
    with life(tmp_path, Layout.BLHNC, seed=2) as second:
        asked = [item(each.group, 0, slot, each) for slot, each in enumerate(keys(), 1)]
        found = second.statuses(Kind.PROMOTE, *asked)
        assert found == (Status.CORRUPT, Status.SHORT, Status.MISS, OK, OK)
        assert {*second.records.keys()} == {*keys()[3:]}
        assert second.worker.failures == {"corrupt": 1, "short": 1, "miss": 1}
        assert second.records.counts().num_bad == 2
        drops = [item(each.group, 0, 0, each) for each in keys()]
        assert second.statuses(Kind.DROP, *drops) == (OK,) * 5
    with life(tmp_path, Layout.BLHNC, seed=3) as third:
        assert third.records.keys() == []
