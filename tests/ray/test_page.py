"""What docs/ray.md and the example show runs where Ray is."""

import re
import subprocess
import sys

from tests.docs.markdown import ROOT, blocks


def test_the_blocks_of_the_page_run() -> None:
    shown = [block.text for block in blocks(ROOT / "docs" / "ray.md") if block.needs_ray]
    assert shown
    for text in shown:
        exec(compile(text, "ray.md", "exec"), {})


def test_the_example_reuses_what_it_predicts() -> None:
    told = subprocess.check_output(
        [sys.executable, str(ROOT / "examples" / "ray_serve.py")], text=True, timeout=600
    )
    lines = told.splitlines()
    assert len(lines) == 12
    found = [[int(word) for word in re.findall(r"[0-9]+", line)] for line in lines]
    assert all(predicted <= reused for _, _, predicted, _, reused in found)
    assert all(reused > 0 for *_, reused in found[4:])
