"""A calibration chooses what was fastest at the nearest size, and believes only its own files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.calibration import (
    CELLS,
    STAGED,
    Calibration,
    CalibrationFiles,
    Choice,
    DeviceName,
    RunSizes,
    Trial,
    measure,
)

GPU = DeviceName(device="GPU 9", driver="580.1", cuda="13000")
DIRECT = ("plain", "batch")
MECHANISMS = dict.fromkeys((Kind.STORE, Kind.LOAD, Kind.COPY), (*DIRECT, STAGED))


class Device:
    """Mechanisms that take a time per call, per run and per byte, on a clock of their own."""

    def __init__(self, fails: Callable[[Trial], bool] = lambda trial: False) -> None:
        self.now = 0.0
        self.costs = {"plain": (0.0, 4e-6, 2e-11), "batch": (1e-5, 1e-6, 2e-11)}
        self.costs[STAGED] = (2e-5, 1e-8, 1e-12)
        self.fails = fails
        self.attempts: list[Trial] = []

    def clock(self) -> float:
        return self.now

    def seconds(self, mechanism: str, runs: RunSizes) -> float:
        call, run, byte = self.costs[mechanism]
        return call + run * runs.num_runs + byte * runs.num_runs * runs.run_bytes

    def attempt(self, trial: Trial) -> None:
        self.attempts.append(trial)
        if self.fails(trial):
            raise RuntimeError("no such call")
        self.now += self.seconds(trial.mechanism, RunSizes(trial.run_bytes, trial.num_runs))


def test_all_trials_are_repeated_and_the_first_time_does_not_count() -> None:
    device = Device()
    calibration, num_failed = measure(device.attempt, MECHANISMS, device.clock)
    assert num_failed == 0
    assert set(calibration.seconds) == {
        Trial(kind, name, *cell)
        for kind, names in MECHANISMS.items()
        for name in names
        for cell in CELLS
    }
    assert len(device.attempts) == 4 * len(calibration.seconds)
    for trial, seconds in calibration.seconds.items():
        expected = device.seconds(trial.mechanism, RunSizes(trial.run_bytes, trial.num_runs))
        assert seconds == pytest.approx(expected, rel=1e-3)


@given(
    cell=st.sampled_from(CELLS),
    kind=st.sampled_from(list(MECHANISMS)),
    left=st.none() | st.sampled_from(CELLS),
)
def test_the_choice_at_a_measured_size_is_the_fastest(
    cell: tuple[int, int], kind: Kind, left: tuple[int, int] | None
) -> None:
    device = Device()
    calibration, _ = measure(device.attempt, MECHANISMS, device.clock)
    runs, staged = RunSizes(*cell), None if left is None else RunSizes(*left)
    times = {Choice(name, False): device.seconds(name, runs) for name in DIRECT}
    if staged is not None:
        collected = device.seconds(STAGED, runs)
        times |= {Choice(n, True): collected + device.seconds(n, staged) for n in DIRECT}
    chosen = calibration.best(kind, DIRECT, runs, staged)
    assert times[chosen] == pytest.approx(min(times.values()), rel=1e-3)


def test_the_choice_follows_the_sizes() -> None:
    device = Device()
    calibration, _ = measure(device.attempt, MECHANISMS, device.clock)
    slot = RunSizes(196_608, 256)
    best = calibration.best
    assert best(Kind.STORE, DIRECT, RunSizes(4 << 20, 1), None) == Choice("plain", False)
    assert best(Kind.STORE, DIRECT, RunSizes(16_384, 3072), None) == Choice("batch", False)
    assert best(Kind.STORE, DIRECT, RunSizes(16_384, 3072), slot) == Choice("batch", True)
    assert best(Kind.STORE, DIRECT, slot, slot) == Choice("batch", False), "nothing is gained"
    assert best(Kind.COPY, DIRECT, slot, RunSizes(0, 0)) == Choice("plain", True)


@given(run_bytes=st.floats(1, 1 << 40), num_runs=st.integers(1, 1 << 30))
def test_every_size_has_a_choice(run_bytes: float, num_runs: int) -> None:
    device = Device()
    calibration, _ = measure(device.attempt, {Kind.LOAD: DIRECT}, device.clock)
    runs = RunSizes(run_bytes, num_runs)
    assert calibration.best(Kind.LOAD, DIRECT, runs, runs).is_staged is False
    assert Calibration({}).best(Kind.LOAD, DIRECT, runs, runs) == Choice("plain", False)


def test_what_fails_is_counted_and_never_chosen() -> None:
    device = Device(lambda trial: trial.mechanism == "batch")
    calibration, num_failed = measure(device.attempt, {Kind.LOAD: DIRECT}, device.clock)
    assert num_failed == len(CELLS)
    for cell in CELLS:
        chosen = calibration.best(Kind.LOAD, DIRECT, RunSizes(*cell), None)
        assert chosen == Choice("plain", False)


def test_a_slow_device_is_not_measured_for_ever() -> None:
    device = Device()
    device.costs = dict.fromkeys(device.costs, (2.0, 0.0, 0.0))
    calibration, _ = measure(device.attempt, MECHANISMS, device.clock, most_seconds=10)
    assert len(calibration.seconds) == 2
    assert device.now == 16.0


def test_a_file_gives_back_what_was_measured_and_no_other_device_reads_it(tmp_path: Path) -> None:
    device = Device()
    calibration, _ = measure(device.attempt, MECHANISMS, device.clock)
    files = CalibrationFiles(tmp_path / "new" / "folder")
    assert files.read(GPU, MECHANISMS) is None
    files.write(GPU, calibration)
    assert files.read(GPU, MECHANISMS) == calibration
    for other in ("device", "driver", "cuda"):
        of = DeviceName(**{**json.loads(json.dumps(as_dict(GPU))), other: "another"})
        assert files.read(of, MECHANISMS) is None
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [
        files.path(GPU).name
    ]
    assert not files.counts


def as_dict(name: DeviceName) -> dict[str, str]:
    return {"device": name.device, "driver": name.driver, "cuda": name.cuda}


def written(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> CalibrationFiles:
    """Return a folder whose file was changed."""
    files = CalibrationFiles(tmp_path)
    files.write(GPU, Calibration({Trial(Kind.LOAD, "plain", *CELLS[0]): 1e-5}))
    document = json.loads(files.path(GPU).read_bytes())
    change(document)
    files.path(GPU).write_text(json.dumps(document))
    return files


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(version=2),
        lambda document: document.update(more=1),
        lambda document: document["of"].update(driver="other"),
        lambda document: document["cells"][0].__setitem__(0, "write"),
        lambda document: document["cells"][0].__setitem__(0, "steal"),
        lambda document: document["cells"][0].__setitem__(1, "faster"),
        lambda document: document["cells"][0].__setitem__(2, 5),
        lambda document: document["cells"][0].__setitem__(3, 1 << 70),
        lambda document: document["cells"][0].__setitem__(4, -1.0),
        lambda document: document["cells"][0].__setitem__(4, 0),
        lambda document: document["cells"][0].__setitem__(4, 1e9),
        lambda document: document["cells"][0].pop(),
        lambda document: document.update(cells=document["cells"] * 2000),
        lambda document: document.update(cells={}),
        lambda document: document.update(padding="x" * 100_000),
    ],
)
def test_a_file_that_says_anything_else_is_refused_and_counted(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    assert written(tmp_path, lambda document: None).read(GPU, MECHANISMS) is not None
    files = written(tmp_path, change)
    assert files.read(GPU, MECHANISMS) is None
    assert files.counts == {"refused": 1}


@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = CalibrationFiles(tmp_path_factory.getbasetemp())
    files.path(GPU).write_bytes(content)
    assert files.read(GPU, MECHANISMS) is None
    assert files.counts == {"refused": 1}


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    files = CalibrationFiles(tmp_path)
    path = files.path(GPU)
    os.mkfifo(path)
    assert files.read(GPU, MECHANISMS) is None
    path.unlink()
    path.mkdir()
    assert files.read(GPU, MECHANISMS) is None
    path.rmdir()
    (tmp_path / "elsewhere").write_text("{}")
    path.symlink_to(tmp_path / "elsewhere")
    assert files.read(GPU, MECHANISMS) is None
    assert files.counts == {"refused": 3}


def test_a_folder_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    files = CalibrationFiles(tmp_path / "taken")
    files.write(GPU, Calibration({}))
    assert files.counts == {"unwritten": 1}
