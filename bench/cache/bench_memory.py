"""How many bytes does a block of the pool cost, and how many does a hash in a group cost?

Each side's resident memory is measured in a fresh process (`memory.py`): one full group and five
windows of 1 024 tokens, a million blocks, sha256 with all 32 bytes kept.
`KVBRAID_BENCH_CACHE_BLOCKS` makes the pool smaller for a quick look.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.measure import Row, Sample, Side, Target

NUM_BLOCKS = int(os.environ.get("KVBRAID_BENCH_CACHE_BLOCKS", "1_000_000"))


def measured(side: str, figure: str) -> Side:
    """Run a process for one side and return one of its figures."""

    @contextlib.contextmanager
    def context() -> Iterator[Sample]:
        def sample() -> float:
            command = [sys.executable, "-m", "bench.cache.memory", side, str(NUM_BLOCKS)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            return float(json.loads(done.stdout.splitlines()[-1])[figure])

        yield sample

    return context


ROWS = (
    Row(
        name="memory_block",
        question="an empty pool, 6 groups, RSS of a fresh process",
        unit="bytes RSS per block",
        ours=measured("ours", "block"),
        rival=measured("rival", "block"),
        target=Target(ratio=2),
        samples=1,
    ),
    Row(
        name="memory_hash",
        question="all blocks findable, 6 groups, the worst from half of the pool to all of it",
        unit="bytes RSS per (group, hash)",
        ours=measured("ours", "hash"),
        rival=measured("rival", "hash"),
        target=Target(ratio=2),
        samples=1,
    ),
)
