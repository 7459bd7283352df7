"""A directory of states stays within its limit, and touches no file of others."""

from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.state_files import StateFiles, read_state_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_latest_states_are_kept(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "a" / "b", max_files=2)
    paths = [files.write(text) for text in (b"one", b"two", b"three")]
    assert names(tmp_path / "a" / "b") == ["recovery-00000001.json", "recovery-00000002.json"]
    assert paths[2] is not None
    assert read_state_file(paths[2], max_bytes=9) == b"three"


def test_an_engine_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(3):
        StateFiles(tmp_path, max_files=2).write(b"state")
    assert names(tmp_path) == ["recovery-00000001.json", "recovery-00000002.json"]


def test_files_of_others_stay(tmp_path: Path) -> None:
    others = ["notes.json", "recovery-1.json", "recovery-00000000.json.txt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    files = StateFiles(tmp_path, max_files=1)
    files.write(b"one")
    files.write(b"two")
    assert names(tmp_path) == sorted([*others, "recovery-00000001.json"])


def test_two_engines_overwrite_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second engine listed the directory before the first one wrote."""
    files = StateFiles(tmp_path)
    monkeypatch.setattr(StateFiles, "_files", lambda _: {})
    assert [files.write(text) for text in (b"one", b"two")] == [
        tmp_path / "recovery-00000000.json",
        tmp_path / "recovery-00000001.json",
    ]
    assert (tmp_path / "recovery-00000000.json").read_bytes() == b"one"


def test_a_state_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert files.write(b"one") is None
    assert files.num_lost == 1


def test_a_reader_sees_that_a_file_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"12345")
    assert read_state_file(tmp_path / "state", max_bytes=3) == b"1234"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError, match="max_files is 0; expected an integer of at least 1"
    ):
        StateFiles(tmp_path, max_files=0)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValueError, match=r"cannot be made: .*; name another directory"):
        StateFiles(tmp_path / "file" / "below")
    with pytest.raises(InvalidValueError, match=r"cannot be read: .*; give the path of a state"):
        read_state_file(tmp_path / "none", max_bytes=3)
