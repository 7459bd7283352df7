"""What docs/ray.md shows runs where Ray is, and so does the example."""

import subprocess
import sys

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.ray.cluster import SETTINGS


def test_the_blocks_of_the_page_run() -> None:
    shown = [block.text for block in blocks(ROOT / "docs" / "ray.md") if block.needs_ray]
    assert shown
    for text in shown:
        exec(compile(text, "ray.md", "exec"), {})


@pytest.mark.timeout(300)
def test_the_example_reuses_what_it_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ray_serve.py")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert sum("tokens:" in line for line in shown) == 50
