"""The engine of a CUDA device, whole; streams, events and the runtime are fakes over the CPU.

What only a device can show (times, true overlap) is measured by `make bench-gpu`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from kvbraid.layout import Layout
from kvbraid.layout.tensors import Tensors, allocate
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.mover import MOVES, Mover, cuda
from kvbraid.transfer.mover.calibration import Calibration, Trial, measure
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from tests.unit.transfer.devices import FakeLibrary
from tests.unit.transfer.pools import hybrid_plan
from tests.unit.transfer.workers import item

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

    def record(self, stream: FakeStream) -> None:
        self.num_queries = 0
        LOG.append(("recorded", stream.cuda_stream))

    def query(self) -> bool:
        self.num_queries += 1
        return self.num_queries > 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    library, zeros = FakeLibrary(13_000), torch.zeros

    def unpinned(*sizes: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return zeros(*sizes, **options)

    monkeypatch.setattr(cuda, "loaded_library", lambda: library)
    monkeypatch.setattr(torch, "zeros", unpinned)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: COMPUTE)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a fake")
    monkeypatch.setattr(cuda, "MAX_TRIAL_BYTES", SMALL)
    monkeypatch.setattr(cuda, "measure", measure_small)
    yield library
    LOG.clear()


def pool() -> Tensors:
    tensors = allocate(hybrid_plan(Layout.LBHNC))
    tensors.memory.copy_(torch.arange(tensors.memory.numel()) % 251 - 125)
    return tensors


def test_blocks_are_stored_copied_and_loaded_by_what_was_measured(
    library: FakeLibrary, tmp_path: Path
) -> None:
    tensors = pool()
    plan = tensors.plan
    engine = cuda.CudaEngine(tensors, calibrations=tmp_path)
    [file] = tmp_path.iterdir()
    trials = len(library.calls)
    assert trials > 0
    host = HostTier(HostSlots.of(plan, 1 << 16), pinning=engine.pinning)
    assert host.wait(60)
    worker = Worker(Mover(plan, bases=tensors.bases, host=host, engine=engine), {})
    before = tensors.memory.clone()
    LOG.clear()

    def ended(kind: Kind, *items: Item) -> None:
        worker.submit([Job(number=1, kind=kind, items=items)])
        assert worker.poll() == [], "the events are not over yet"
        assert worker.poll()[0].statuses == (Status.OK,) * len(items)

    stored = item(0, 1, 3), item(0, 2, 4), item(1, 3, 1), item(2, 4, 2)
    ended(Kind.STORE, *stored)
    handles = {entry[1] for entry in LOG}
    assert len(handles) == 1, "one stream for all stores"
    assert [entry[0] for entry in LOG] == ["waits", "recorded"] * 3
    assert all(entry[2] == COMPUTE for entry in LOG if entry[0] == "waits")
    assert {call[-1] for call in library.calls[trials:] if call[0] != "register"} <= handles
    ended(Kind.COPY, item(0, 1, 7))
    tensors.memory[: plan.size_bytes] = 0
    ended(Kind.LOAD, *(item(each.group, each.target, each.source) for each in stored))
    for each in stored:
        for reference in plan.groups[each.group].references:
            for offset, length in reference.exact():
                start = (plan.buffers[reference.buffer].start or 0) + offset
                start += each.source * reference.block_stride
                assert torch.equal(
                    tensors.memory[start : start + length], before[start : start + length]
                )
    worker.close()
    assert [entry[0] for entry in LOG[-len(MOVES) :]] == ["synchronized"] * len(MOVES)
    assert library.pinned == {}
    library.calls.clear()
    cuda.CudaEngine(tensors, calibrations=tmp_path)
    assert library.calls == [], "the second start reads what the first measured"
    file.write_text("{}")
    cuda.CudaEngine(tensors, calibrations=tmp_path)
    assert len(library.calls) == trials, "what is not ours is measured again"
