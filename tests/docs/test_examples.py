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
to make without an answer; a tier has six calls."""


EXAMPLES: Final = sorted(ROOT.glob("examples/*.py"))
_TESTED_ELSEWHERE: Final = {"ray_serve.py"}
"""It needs a cluster: `make test-ray`."""


def test_every_example_is_short() -> None:
    for example in EXAMPLES:
        assert len(example.read_text().splitlines()) <= MAX_LINES.get(example.name, 30)


@pytest.mark.parametrize(
    "example",
    [path for path in EXAMPLES if path.name not in _TESTED_ELSEWHERE],
    ids=lambda path: path.name,
)
def test_every_example_runs(example: Path) -> None:
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
