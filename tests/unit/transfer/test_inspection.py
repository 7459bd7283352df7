"""`kvbraid tier`: what it counts, what it removes, what it exits with, and what it refuses."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import new_temporary, record_name, shard_of
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import PAGE_BYTES, padded

from tests.unit.fresh_process import blocked, fresh
from tests.unit.transfer.faulty_tier import NAMESPACE, USED, block, job, key, run

NOTHING = dict.fromkeys(
    ("records", "bytes", "corrupt", "short", "foreign", "orphans", "removed"), 0
)
RECORD_BYTES = PAGE_BYTES + padded(USED[0])


def filled(directory: Path, namespace: Namespace = NAMESPACE, num: int = 6) -> list[Path]:
    """Store records; return their files."""
    tier = DiskTier(directory, max_bytes=1 << 30)
    store = RecordStore("disk", tier, namespace=namespace, used_bytes=USED)
    keys = [key(number) for number in range(num)]
    run(store, job(1, Kind.WRITE, *keys), *(block(number) for number in range(num)))
    assert store.close(60)
    names = (Path(shard_of(each), record_name(each, padded(USED[0]))) for each in keys)
    return [directory / namespace.digest / name for name in names]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def files(directory: Path) -> list[Path]:
    return filled(directory)


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["tier", *map(str, arguments)])


def told(*arguments: object, status: int = 0) -> dict[str, int]:
    result = ask(*arguments, "--json")
    assert result.exit_code == status, result.output
    counts: dict[str, int] = json.loads(result.stdout)
    assert list(counts) == list(NOTHING)
    return counts


def damage(files: list[Path], directory: Path) -> None:
    """Leave a short record, two corrupt ones, a foreign one, an orphan, and two that are good."""
    os.truncate(files[0], 100)
    files[1].write_bytes(b"\0" + files[1].read_bytes()[1:])
    files[2].write_bytes(files[2].read_bytes()[:-1] + b"\0")
    other = directory.parent / "other"
    shutil.copy(filled(other, replace(NAMESPACE, rank=7))[3], files[3])
    files[4].with_name(new_temporary()).write_text("half")
    files[4].with_name("notes").write_text("mine")


def test_records_are_counted_without_being_read(directory: Path, files: list[Path]) -> None:
    counts = told(directory)
    assert counts == NOTHING | {"records": 6, "bytes": 6 * RECORD_BYTES}
    damage(files, directory)
    assert told(directory) == counts | {"short": 1, "orphans": 1}


def test_verifying_finds_all_that_is_bad_and_exits_with_1(
    directory: Path, files: list[Path]
) -> None:
    assert told(directory, "--verify")["corrupt"] == 0
    damage(files, directory)
    assert told(directory, "--verify", status=1) == NOTHING | {
        "records": 6, "bytes": 6 * RECORD_BYTES, "short": 1, "corrupt": 2, "foreign": 1,
        "orphans": 1,
    }  # fmt: skip
    assert all(path.exists() for path in files)


def test_cleaning_removes_what_is_no_good_and_nothing_else(
    directory: Path, files: list[Path]
) -> None:
    damage(files, directory)
    assert told(directory, "--gc")["removed"] == 2
    assert told(directory, "--gc", "--verify", status=1)["removed"] == 2
    assert [path.exists() for path in files] == [False, False, False, True, True, True]
    assert files[4].with_name("notes").exists()
    assert told(directory, "--verify", status=1) == NOTHING | {
        "records": 3, "bytes": 3 * RECORD_BYTES, "foreign": 1,
    }  # fmt: skip


def test_what_an_engine_is_writing_is_no_orphan(
    directory: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    real: Callable[..., None] = os.rename

    def meanwhile(*arguments: object, **named: object) -> None:
        seen.append(told(directory, "--gc"))
        real(*arguments, **named)

    monkeypatch.setattr(os, "rename", meanwhile)
    filled(directory, num=7)
    assert seen == [NOTHING | {"records": 6, "bytes": 6 * RECORD_BYTES}]
    assert told(directory, "--verify")["records"] == 7


def test_a_table_has_the_same_counts(directory: Path, files: list[Path]) -> None:
    result = ask(directory)
    assert result.exit_code == 0
    header, _, row = result.stdout.splitlines()[:3]
    assert header.split() == list(NOTHING)
    assert row.split() == ["6", f"{6 * RECORD_BYTES:,}", *"00000"]


def test_links_and_strangers_are_left_alone(directory: Path, files: list[Path]) -> None:
    outside = directory.parent / "outside"
    outside.mkdir()
    (outside / new_temporary()).write_text("theirs")
    (directory / ("0" * 32)).symlink_to(outside)
    files[0].unlink()
    files[0].symlink_to(files[1])
    assert told(directory, "--gc") == NOTHING | {
        "records": 6, "bytes": 6 * RECORD_BYTES, "short": 1, "removed": 1,
    }  # fmt: skip
    assert len([*outside.iterdir()]) == 1
    assert files[1].exists()


@pytest.mark.parametrize("what", ["nothing", "file"])
def test_what_is_no_directory_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("")
    error = ask(path).exception
    assert isinstance(error, InvalidValueError)
    assert str(error).startswith(f"{path} cannot be read: N")
    assert str(error).endswith("; name the directory of a tier")
    assert "\n" not in str(error)


def test_without_the_extra_its_name_is_the_message() -> None:
    program = f"""{blocked("xxhash")}
sys.argv, sys.stderr = ["kvbraid", "tier", "."], sys.stdout
from kvbraid.__main__ import main
try:
    main()
except SystemExit as error:
    print(error.code)
"""
    lines = fresh(program)
    assert "kvbraid tier needs xxhash" in lines[0]
    assert "'.[transfer]'" in lines[0]
