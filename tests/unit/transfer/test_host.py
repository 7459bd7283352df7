"""The arena: every ready slot has memory of its own, whatever happened while it was made."""

import mmap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.transfer.host import PAGE_BYTES, HostSlots, HostTier, Pinning

from tests.unit.fresh_process import PLANNED, blocked, fresh
from tests.unit.transfer.pools import hybrid_plan


def slots_of(num: int, used: tuple[int, ...] = (5000, 100)) -> HostSlots:
    return HostSlots(used_bytes=used, slot_bytes=8192, num_slots=num)


def made(
    slots: HostSlots, *, piece_bytes: int = 1 << 30, pinning: Pinning | None = None
) -> HostTier:
    host = HostTier(slots, piece_bytes=piece_bytes, pinning=pinning)
    assert host.wait(60)
    return host


class Pins:
    """Remembers what is pinned; `fails` are the calls that raise."""

    def __init__(self, *fails: int) -> None:
        self.fails, self.num_calls = fails, 0
        self.pinned: dict[int, int] = {}

    def pin(self, address: int, size_bytes: int) -> None:
        self.num_calls += 1
        if self.num_calls in self.fails:
            raise RuntimeError("out of memory")
        self.pinned[address] = size_bytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]


@given(
    num_slots=st.integers(1, 12),
    piece_bytes=st.sampled_from((1, 8192, 8193, 20_000, 1 << 20)),
    fails=st.sets(st.integers(1, 12)),
)
def test_every_slot_has_bytes_of_its_own(
    num_slots: int, piece_bytes: int, fails: set[int]
) -> None:
    pins = Pins(*fails)
    host = made(slots_of(num_slots), piece_bytes=piece_bytes, pinning=pins)
    try:
        assert host.num_ready_slots == num_slots
        host.check_integrity()
        for slot in range(1, num_slots + 1):
            host.payload(slot, 0)[:] = bytes([slot]) * 8192
        for slot in range(1, num_slots + 1):
            assert bytes(host.payload(slot, 0)) == bytes([slot]) * 8192
            assert bytes(host.payload(slot, 1)) == bytes([slot]) * 4096
        pinned = sum(size // 8192 for size in pins.pinned.values())
        assert host.num_unpinned_slots == num_slots - pinned
        assert host.failure == ""
    finally:
        host.close()
    assert pins.pinned == {}
    host.check_integrity()


def test_a_slot_takes_the_largest_group_in_pages() -> None:
    plan = hybrid_plan()
    used = [group.used_bytes for group in plan.groups]
    slots = HostSlots.of(plan, 100_000)
    assert slots.used_bytes == tuple(used)
    assert slots.slot_bytes == -(-max(used) // PAGE_BYTES) * PAGE_BYTES
    assert slots.num_slots == 100_000 // slots.slot_bytes
    assert [slots.payload_bytes(group) for group in range(3)] == [
        -(-each // PAGE_BYTES) * PAGE_BYTES for each in used
    ]
    with pytest.raises(InvalidValueError, match=r"size_bytes is 5; one block takes .* at least"):
        HostSlots.of(plan, 5)


@pytest.mark.parametrize("slot", [0, -1, 4])
def test_the_null_slot_and_slots_beyond_the_ready_ones_have_no_payload(slot: int) -> None:
    host = made(slots_of(3))
    with pytest.raises(InvalidValueError, match=f"slot is {slot}; slots 1 to 3 are ready"):
        host.payload(slot, 0)
    host.close()
    with pytest.raises(InvalidValueError, match="slots 1 to 0 are ready"):
        host.payload(1, 0)


def test_payloads_begin_at_pages_and_are_written_through() -> None:
    host = made(slots_of(2))
    payload = host.payload(2, 0)
    assert len(payload) == 8192
    assert not payload.readonly
    assert host.regions()[0][0] % PAGE_BYTES == 0
    payload[:3] = b"abc"
    assert bytes(host.payload(2, 1)[:3]) == b"abc"
    host.close()


def test_memory_that_cannot_be_had_leaves_the_arena_smaller_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = mmap.mmap, []

    def limited(fileno: int, length: int, *, flags: int) -> mmap.mmap:
        calls.append(length)
        if len(calls) == 3:
            raise OSError(12, "Cannot allocate memory")
        return real(fileno, length, flags=flags)

    monkeypatch.setattr(mmap, "mmap", limited)
    host = made(slots_of(10), piece_bytes=2 * 8192)
    assert host.num_ready_slots == 4
    assert host.failure == "2 slots of 8192 bytes: [Errno 12] Cannot allocate memory"
    host.check_integrity()
    host.close()


def test_an_arena_that_no_address_space_has_is_a_failure_and_no_crash() -> None:
    slots = HostSlots(used_bytes=(1,), slot_bytes=1 << 62, num_slots=8)
    host = made(slots, piece_bytes=1 << 62)
    assert host.num_ready_slots == 0
    assert host.failure
    host.close()


def test_a_close_ends_the_thread_before_all_pieces_are_made() -> None:
    before = threading.active_count()
    started, may_go_on = threading.Event(), threading.Event()

    class Held(Pins):
        def pin(self, address: int, size_bytes: int) -> None:
            started.set()
            assert may_go_on.wait(60)
            super().pin(address, size_bytes)

    pins = Held()
    host = HostTier(slots_of(20_000), piece_bytes=8192, pinning=pins)
    assert started.wait(60)
    closer = threading.Thread(target=host.close)
    closer.start()
    may_go_on.set()
    closer.join(60)
    assert 1 <= pins.num_calls < 20_000
    assert pins.pinned == {}
    assert threading.active_count() == before


def test_a_device_that_is_gone_does_not_keep_the_arena() -> None:
    class Gone(Pins):
        def unpin(self, address: int) -> None:
            super().unpin(address)
            raise RuntimeError("driver shutting down")

    pins = Gone()
    host = made(slots_of(4), piece_bytes=8192, pinning=pins)
    host.close()
    assert pins.pinned == {}, "all four pieces were tried"
    assert host.failure == "driver shutting down"


def test_bytes_are_moved_where_the_native_core_is_not_built() -> None:
    program = f"""
{blocked("kvbraid._native")}
{PLANNED}
import ctypes
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.worker import Worker
memory = (ctypes.c_ubyte * plan.size_bytes)(*[7] * plan.size_bytes)
host = HostTier(HostSlots.of(plan, 1 << 20))
host.wait()
worker = Worker(Mover(plan, bases=ctypes.addressof(memory), host=host), {{}})
worker.submit([Job(number=1, kind=Kind.STORE, items=(Item(0, 1, 1),))])
print(*worker.poll()[0].statuses, set(host.payload(1, 0)[:plan.groups[0].used_bytes]))
print("torch" in sys.modules)
worker.close()
"""
    assert fresh(program)[1:] == ["ok {7}", "False"]
