"""The blocks of the pages that need torch run."""

import subprocess
import sys
from typing import Final

import pytest

from tests.docs.markdown import ROOT, Block, blocks, pages

BLOCKS: Final = [block for page in pages() for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.needs_torch])
def test_a_block_that_needs_torch_runs(block: Block) -> None:
    subprocess.run([sys.executable, "-c", block.text], cwd=ROOT, timeout=60, check=True)
