"""A CUDA device through torch: its streams, runs collected on it, and what is fastest there.

Invariant: of what moves bytes, this module alone imports torch. It computes nothing: words of 8
bytes are copied as integers, because torch spreads single bytes 15 times slower.
"""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch

from kvbraid.layout.descriptors import Array, progressions
from kvbraid.layout.plan import PlannedGroup
from kvbraid.layout.tensors import Tensors
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.calibration import (
    MAX_TRIAL_BYTES,
    STAGED,
    Calibration,
    CalibrationFiles,
    DeviceName,
    Trial,
    measure,
)
from kvbraid.transfer.mover.cudart import CudaRuntime, DevicePinning, loaded_library
from kvbraid.transfer.mover.device import (
    CopyRuns,
    CopyStreams,
    DeviceEngine,
    Staging,
    trial_copies,
)
from kvbraid.transfer.mover.moving import MOVES, Pending

_WORD: Final = 8
STAGING_BYTES: Final = 32 << 20
"""Memory of the device for each kind of move."""

_DRIVER: Final = Path("/proc/driver/nvidia/version")


class TorchStreams:
    """A stream of a CUDA device for each kind of move."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._streams: Final = {kind: torch.cuda.Stream(device) for kind in MOVES}

    def begin(self, kind: Kind) -> int:
        """Let a stream wait for the current one; return its handle."""
        stream = self._streams[kind]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        return int(stream.cuda_stream)

    def scope(self, kind: Kind) -> AbstractContextManager[object]:
        """Return what makes a stream the current one."""
        scope: AbstractContextManager[object] = torch.cuda.stream(self._streams[kind])
        return scope

    def mark(self, kind: Kind) -> Pending:
        """Return an event of a stream."""
        event = torch.cuda.Event()
        event.record(self._streams[kind])
        return _Marked(event)

    def wait(self) -> None:
        """Wait for all streams."""
        for stream in self._streams.values():
            stream.synchronize()


class _Marked(NamedTuple):
    event: "torch.cuda.Event"

    def is_over(self) -> bool:
        return bool(self.event.query())


class _Piece(NamedTuple):
    """Evenly spaced runs, as words of every block of the pool, and their place in a block."""

    words: torch.Tensor  # (blocks of the pool, runs, words of a run)
    begin: int
    end: int


class TorchStaging:
    """Memory beside a pool, on its device, in which torch collects runs of blocks."""

    def __init__(self, tensors: Tensors, size_bytes: int = STAGING_BYTES) -> None:
        memory = tensors.memory
        self._words = torch.empty(size_bytes // _WORD, dtype=torch.int64, device=memory.device)
        self.address: int = self._words.data_ptr()
        self.size_bytes: int = self._words.numel() * _WORD
        self._groups = [_pieces(tensors, group) for group in tensors.plan.groups]
        self._block_words = [group.used_bytes // _WORD for group in tensors.plan.groups]

    def takes(self, group: int) -> bool:
        """Return whether all runs of the group are whole words."""
        return bool(self._groups[group])

    def collect(self, group: int, blocks: Array) -> None:
        """Gather blocks, in the current stream."""
        ids = self._ids(blocks)
        for piece, rows in self._rows(group, len(blocks)):
            rows.copy_(torch.index_select(piece.words, 0, ids))

    def spread(self, group: int, blocks: Array) -> None:
        """Scatter to blocks, in the current stream."""
        ids = self._ids(blocks)
        for piece, rows in self._rows(group, len(blocks)):
            piece.words.index_copy_(0, ids, rows)

    def _ids(self, blocks: Array) -> torch.Tensor:
        return torch.from_numpy(blocks.astype(np.int64)).to(self._words.device)

    def _rows(self, group: int, num: int) -> list[tuple[_Piece, torch.Tensor]]:
        """Return each piece of a group, and where it stands in the staging memory."""
        words = self._block_words[group]
        staged = self._words[: num * words].view(num, words)
        return [
            (piece, staged[:, piece.begin : piece.end].unflatten(1, piece.words.shape[1:]))
            for piece in self._groups[group]
        ]


def _pieces(tensors: Tensors, group: PlannedGroup) -> list[_Piece]:
    """Return the pieces of a group's block; none if a run does not begin or end at a word."""
    plan, memory = tensors.plan, tensors.memory
    words = memory[: memory.numel() // _WORD * _WORD].view(torch.int64)
    found: list[_Piece] = []
    place = 0
    for reference in group.references:
        start = plan.buffers[reference.buffer].start or 0
        for offset, length, stride, count in progressions(reference.exact()):
            numbers = (start + offset, length, stride, reference.block_stride)
            if any(number % _WORD for number in numbers):
                return []
            first, size, step, block = (number // _WORD for number in numbers)
            view = words.as_strided(
                (plan.num_blocks or 0, count, size),
                (block, step, 1),
                words.storage_offset() + first,
            )
            found.append(_Piece(view, place, place + count * size))
            place += count * size
    return found


class _Trials:
    """Carries out trials in memory of its own."""

    def __init__(
        self, copies: dict[str, CopyRuns], streams: TorchStreams, device: torch.device
    ) -> None:
        words = MAX_TRIAL_BYTES // _WORD
        self._copies, self._streams = copies, streams
        self._device, self._staged = (
            torch.zeros(words, dtype=torch.int64, device=device) for _ in range(2)
        )
        self._host = torch.zeros(words, dtype=torch.int64, pin_memory=True)

    def __call__(self, trial: Trial) -> None:
        """Carry one out, and wait for its end."""
        if trial.mechanism == STAGED:
            self._stage(trial)
        else:
            other = self._staged if trial.kind is Kind.COPY else self._host
            copies = trial_copies(trial, self._device.data_ptr(), other.data_ptr())
            stream = self._streams.begin(trial.kind)
            self._copies[trial.mechanism](copies, trial.kind, stream)
        self._streams.wait()

    def _stage(self, trial: Trial) -> None:
        num, words = trial.num_runs, trial.run_bytes // _WORD
        here, there = (
            each[: num * words].view(num, words) for each in (self._device, self._staged)
        )
        ids = torch.randperm(num, device=here.device)
        self._streams.begin(trial.kind)
        with self._streams.scope(trial.kind):
            if trial.kind is not Kind.LOAD:
                there.copy_(torch.index_select(here, 0, ids))
            if trial.kind is not Kind.STORE:
                here.index_copy_(0, ids, there)


def device_name(runtime: CudaRuntime, device: torch.device) -> DeviceName:
    """Return what a calibration of this device is true of."""
    return DeviceName(
        device=torch.cuda.get_device_name(device),
        driver=_DRIVER.read_text()[:500] if _DRIVER.exists() else str(runtime.driver_version()),
        cuda=str(runtime.version),
    )


def calibrate(
    runtime: CudaRuntime, device: torch.device, files: CalibrationFiles | None
) -> tuple[Calibration, int]:
    """Return the calibration of a device, and how many of its trials failed.

    It is read from its file, or measured now and written. Measuring takes seconds and three times
    `MAX_TRIAL_BYTES` of memory, which it gives back.
    """
    mechanisms = dict.fromkeys(MOVES, (*runtime.copies, STAGED))
    name = device_name(runtime, device)
    known = None if files is None else files.read(name, mechanisms)
    if known is not None:
        return known, 0
    attempt = _Trials(runtime.copies, TorchStreams(device), device)
    calibration, num_failed = measure(attempt, mechanisms, time.perf_counter)
    if files is not None:
        files.write(name, calibration)
    return calibration, num_failed


class CudaEngine(DeviceEngine):
    """Moves between a pool of tensors on a CUDA device and host memory.

    `pinning` is for the `HostTier` of the same mover. With a folder for calibrations only the
    first start on a device measures it.

    Raises:
        UnsupportedError: torch has loaded no runtime of CUDA.
    """

    def __init__(self, tensors: Tensors, *, calibrations: Path | None = None) -> None:
        device = tensors.memory.device
        runtime = CudaRuntime(loaded_library())
        self.pinning: Final = DevicePinning(runtime, device.index or 0)
        files = None if calibrations is None else CalibrationFiles(calibrations)
        calibration, num_failed = calibrate(runtime, device, files)
        streams: CopyStreams = TorchStreams(device)
        staging: dict[Kind, Staging] = {kind: TorchStaging(tensors) for kind in MOVES}
        super().__init__(
            copies=runtime.copies,
            streams=streams,
            calibration=calibration,
            used_bytes=tuple(group.used_bytes for group in tensors.plan.groups),
            pinning=self.pinning,
            staging=staging,
        )
        self.incidents["calibration_trials"] = num_failed
        for what in ("refused", "unwritten"):
            self.incidents[f"calibration_{what}"] = files.counts[what] if files else 0
