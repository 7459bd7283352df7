"""CUDA as torch shows it, over memory of the CPU; streams and events write down what waits."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover import cuda
from kvbraid.transfer.mover.calibration import Calibration, Trial, measure

from tests.unit.transfer.devices import FakeLibrary

COMPUTE = "the stream that computes"
SMALL = 1 << 18
LOG: list[tuple[object, ...]] = []


def measure_small(
    attempt: Callable[[Trial], object],
    mechanisms: Mapping[Kind, Iterable[str]],
    clock: Callable[[], float],
) -> tuple[Calibration, int]:
    """Measure what fits into little memory; the rest fails."""

    def try_small(trial: Trial) -> None:
        if trial.run_bytes * trial.num_runs > SMALL:
            raise RuntimeError("too large")
        attempt(trial)

    return measure(try_small, mechanisms, clock)


class FakeStream:
    """A stream that writes down what waits for what."""

    numbers = iter(range(1, 1_000_000))

    def __init__(self, device: torch.device) -> None:
        self.cuda_stream = next(self.numbers)

    def wait_stream(self, other: object) -> None:
        LOG.append(("waits", self.cuda_stream, other))

    def synchronize(self) -> None:
        LOG.append(("synchronized", self.cuda_stream))


class FakeEvent:
    """An event that is over at the second question."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.num_queries = 0

    def record(self, stream: FakeStream | None = None) -> None:
        LOG.append(("recorded", stream and stream.cuda_stream))

    def elapsed_time(self, other: "FakeEvent") -> float:
        return 1.0

    def query(self) -> bool:
        self.num_queries += 1
        return self.num_queries > 1


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Put fakes in place of what needs a device, and return the runtime."""
    LOG.clear()
    library, zeros = FakeLibrary(13_000), torch.zeros

    def unpinned(*sizes: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return zeros(*sizes, **options)

    monkeypatch.setattr(cuda, "loaded_library", lambda: library)
    monkeypatch.setattr(torch, "zeros", unpinned)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: COMPUTE)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a fake")
    monkeypatch.setattr(cuda, "MAX_TRIAL_BYTES", SMALL)
    monkeypatch.setattr(cuda, "measure", measure_small)
    return library
