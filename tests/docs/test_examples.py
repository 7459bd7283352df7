"""Every file of examples/ runs, shows something, and is short enough to read at a glance."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.markdown import ROOT

MAX_LINES: Final = {
    "engine.py": 60,
    "gateway.py": 60,
    "object_tier.py": 60,
    "own_engine.py": 120,
    "ray_serve.py": 60,
    "router.py": 45,
    "subscriber.py": 60,
}
"""An engine has a tier and a failure to show, or a whole loop; a gateway has sockets, or a choice
to make without an answer; a tier has six calls; a deployment has its replicas."""


NEEDS_RAY: Final = ROOT / "examples" / "ray_serve.py"
"""It starts a cluster: `make test-ray` runs it."""


def test_the_example_that_needs_ray_is_short() -> None:
    assert len(NEEDS_RAY.read_text().splitlines()) <= MAX_LINES[NEEDS_RAY.name]


@pytest.mark.parametrize(
    "example",
    sorted({*ROOT.glob("examples/*.py")} - {NEEDS_RAY}),
    ids=lambda path: path.name,
)
def test_every_example_runs_and_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= MAX_LINES.get(example.name, 30)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"
