"""The engine of a CUDA device, whole; streams, events and the runtime are fakes over the CPU.

What only a device can show (times, true overlap) is measured by `make bench-gpu`.
"""

import json
from pathlib import Path

import pytest
import torch
from kvbraid.layout import Layout
from kvbraid.layout.tensors import Tensors, allocate
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.mover import MOVES, Mover, cuda
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from bench.transfer import gpu
from tests.torch.fake_cuda import COMPUTE, LOG, fake_cuda
from tests.unit.transfer.pools import hybrid_plan
from tests.unit.transfer.workers import item


def pool() -> Tensors:
    tensors = allocate(hybrid_plan(Layout.LBHNC))
    tensors.memory.copy_(torch.arange(tensors.memory.numel()) % 251 - 125)
    return tensors


def test_blocks_are_stored_copied_and_loaded_by_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, tensors = fake_cuda(monkeypatch), pool()
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
    again = cuda.CudaEngine(tensors, calibrations=tmp_path)
    assert len(library.calls) == trials, "what is not ours is measured again"
    assert engine.incidents["calibration_trials"] > 0, "the double has no memory for all of them"
    counts = {"trials": again.incidents["calibration_trials"], "refused": 1, "unwritten": 0}
    assert again.incidents == {f"calibration_{what}": number for what, number in counts.items()}


def test_the_benchmark_verifies_and_prints_every_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures mean nothing here."""
    fake_cuda(monkeypatch)
    monkeypatch.setattr(gpu, "GEMM_SIZE", 16)
    monkeypatch.setattr(gpu, "REPEATS", 1)
    monkeypatch.setattr(gpu, "MODELS", ("copies_gpt_oss_20b_tp2",))
    assert gpu.measure_all(torch.device("cpu"), tmp_path, moved=1 << 20) == 0
    rows = [json.loads(line)["bench"] for line in capsys.readouterr().out.splitlines()]
    sizes = "4m", "1m", "384k", "192k", "64k", "16k"
    assert rows == [
        *(f"gpu_{way}_{size}" for size in sizes for way in ("d2h", "h2d")),
        "gpu_both_4m",
        "gpu_gemm",
        "gpu_layout_gpt_oss_20b_tp2",
    ]


def test_the_benchmark_says_what_is_missing_where_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main() == 2
    assert capsys.readouterr().err == f"{gpu.NO_GPU}\n"
