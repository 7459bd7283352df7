"""Calls of CUDA's runtime, through functions of C's calling convention in place of its library."""

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvbraid.errors import UnsupportedError
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.cudart import (
    BATCH,
    PLAIN,
    CopyAttributes,
    CudaRuntime,
    DevicePinning,
    loaded_library,
)
from kvbraid.transfer.mover.runs import Copies

from tests.unit.transfer.devices import OUT_OF_MEMORY, FakeLibrary

STREAM = 0x5EA


def three_runs() -> tuple[Any, Any, Copies]:
    """Runs of 3, 2 and 4 bytes, as columns of a table: arrays that are not contiguous."""
    source = np.arange(1, 31, dtype=np.uint8)
    target = np.zeros(30, np.uint8)
    rows = np.array([[0, 20, 3], [10, 5, 2], [26, 10, 4]], np.uint64)
    rows[:, 0] += np.uint64(source.ctypes.data)
    rows[:, 1] += np.uint64(target.ctypes.data)
    return source, target, Copies(rows[:, 0], rows[:, 1], rows[:, 2])


@pytest.mark.parametrize("version", [12_080, 12_090, 13_000, 13_010])
@pytest.mark.parametrize(("kind", "order"), [(Kind.STORE, 1), (Kind.COPY, 1), (Kind.LOAD, 3)])
def test_one_call_copies_all_runs_with_one_set_of_attributes(
    version: int, kind: Kind, order: int
) -> None:
    library = FakeLibrary(version)
    source, target, copies = three_runs()
    CudaRuntime(library).copies[BATCH](copies, kind, STREAM)
    assert library.calls == [("batch", 3, order, 1, 0, 1, STREAM)]
    expected = np.zeros(30, np.uint8)
    expected[20:23], expected[5:7], expected[10:14] = source[:3], source[10:12], source[26:30]
    assert np.array_equal(target, expected)


def test_attributes_are_as_long_as_the_runtimes() -> None:
    assert ctypes.sizeof(CopyAttributes) == 24  # An enum, two locations of 8 bytes, flags.


def test_before_12_8_runs_are_copied_one_by_one() -> None:
    library = FakeLibrary(12_060)
    _, target, copies = three_runs()
    runtime = CudaRuntime(library)
    assert list(runtime.copies) == [PLAIN]
    runtime.copies[PLAIN](copies, Kind.LOAD, STREAM)
    assert library.calls == [("copy", length, 4, STREAM) for length in (3, 2, 4)]
    assert np.count_nonzero(target) == 9


def test_no_runs_are_no_call() -> None:
    library = FakeLibrary(13_000)
    none = np.empty(0, np.uint64)
    for copy in CudaRuntime(library).copies.values():
        copy(Copies(none, none, none), Kind.STORE, STREAM)
    assert library.calls == []


@pytest.mark.parametrize(
    ("mechanism", "function"), [(PLAIN, "cudaMemcpyAsync"), (BATCH, "cudaMemcpyBatchAsync")]
)
def test_an_error_code_raises(mechanism: str, function: str) -> None:
    library = FakeLibrary(13_000)
    library.codes = {"copy": 700, "batch": 700}
    _, target, copies = three_runs()
    with pytest.raises(RuntimeError, match=f"^{function}: error 700 of CUDA$"):
        CudaRuntime(library).copies[mechanism](copies, Kind.STORE, STREAM)
    assert not target.any()


def test_pieces_are_pinned_for_the_device_by_the_thread_that_made_them() -> None:
    library = FakeLibrary(13_000)
    pinning = DevicePinning(CudaRuntime(library), device=3)
    slots = HostSlots(used_bytes=(4096,), slot_bytes=4096, num_slots=3)
    host = HostTier(slots, piece_bytes=2 * 4096, pinning=pinning)
    assert host.wait(60)
    assert library.calls == [("register", 3, 1)] * 2
    assert library.pinned == dict(host.regions())
    assert host.num_unpinned_slots == 0
    assert not pinning.has_failed
    host.close()
    assert library.pinned == {}


def test_an_arena_that_cannot_be_pinned_serves_unpinned() -> None:
    library = FakeLibrary(13_000)
    library.codes = {"register": OUT_OF_MEMORY}
    pinning = DevicePinning(CudaRuntime(library), device=0)
    host = HostTier(HostSlots(used_bytes=(4096,), slot_bytes=4096, num_slots=3), pinning=pinning)
    assert host.wait(60)
    assert (host.num_ready_slots, host.num_unpinned_slots) == (3, 3)
    assert pinning.has_failed
    host.close()


def test_versions_are_read() -> None:
    runtime = CudaRuntime(FakeLibrary(12_080))
    assert (runtime.version, runtime.driver_version()) == (12_080, 13_010)


def test_the_library_is_the_one_that_is_loaded_already(tmp_path: Path) -> None:
    other = "7f00-7f01 r-xp 00000000 00:00 12 /usr/lib/libcudart_static.so\n7f02-7f03 rw-p\n"
    with pytest.raises(UnsupportedError, match="no libcudart is loaded; use a torch"):
        loaded_library(other)
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    (tmp_path / "libcudart.so.13").symlink_to(libc)
    line = f"7f00-7f01 r-xp 00000000 00:00 12 {tmp_path}/libcudart.so.13"
    assert loaded_library(f"{other}{line}\n").getpid() == os.getpid()
