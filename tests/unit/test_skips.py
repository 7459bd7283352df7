"""The account of skips, in one process and in two: a reason that nobody expects fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

MODULES = {
    "test_passes.py": "def test_passes(): pass\n",
    "test_expected.py": 'import pytest\ndef test_it(): pytest.skip("needs ../shared/captures")\n',
    "test_at_run.py": 'import pytest\ndef test_it(): pytest.skip("too hard")\n',
    "test_at_import.py": 'import pytest\npytest.skip("too large", allow_module_level=True)\n',
}


def run(folder: Path, processes: int, *names: str) -> subprocess.CompletedProcess[str]:
    """Run modules in a folder of their own, with our account of skips."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for name in names:
        (folder / name).write_text(MODULES[name])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", str(processes), "--rootdir=.", "."],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("processes", [0, 2])
def test_an_unexpected_skip_fails_the_run(tmp_path: Path, processes: int) -> None:
    done = run(tmp_path, processes, *MODULES)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    unexpected = [line for line in done.stdout.splitlines() if line.startswith("UNEXPECTED SKIP")]
    assert unexpected == [
        "UNEXPECTED SKIP test_at_import.py: too large",
        "UNEXPECTED SKIP test_at_run.py::test_it: too hard",
    ]
    assert "1 passed, 3 skipped" in done.stdout


def test_an_expected_skip_is_listed(tmp_path: Path) -> None:
    done = run(tmp_path, 2, "test_passes.py", "test_expected.py")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "test_expected.py::test_it: needs ../shared/captures" in done.stdout
