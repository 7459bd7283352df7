"""The public traces that studies play: where they come from, and how they are read, once."""

from fractions import Fraction
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Final

from kvbraid.sim.traces.footprint import Footprint, footprint
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.trace import Trace

TRACES: Final = {
    "mooncake_conversation_trace.jsonl.zst": "github.com/kvcache-ai/Mooncake, FAST25-release",
    "mooncake_synthetic_trace.jsonl.zst": "github.com/kvcache-ai/Mooncake, FAST25-release",
    "weka_claude_code_710.rle.jsonl.zst": "github.com/callanjfox/kv-cache-tester, re-coded",
}
"""The files, and where each comes from."""

BOUNDED: Final = ("mooncake_conversation_trace", "mooncake_synthetic_trace")
"""Much is left to gain on these; on the third trace all policies reuse 96 %."""

TIGHT: Final = ("1/8", "1/4", "1/2")
"""Shares of the working set that a pool holds."""


def lacks(folder: Path) -> str:
    """Return what to fetch into a folder before a study can run; nothing if all is there."""
    missing = [name for name in TRACES if not (folder / name).exists()]
    if not missing:
        return ""
    told = "; ".join(f"{name} ({TRACES[name]})" for name in missing)
    return f"the folder {folder} lacks {told}; TRACES=folder chooses one"


@lru_cache(maxsize=1)
def trace_of(folder: Path, name: str, limit: int | None) -> Trace:
    """Read a trace by its name without suffixes; `limit`: only its first requests."""
    (file,) = (file for file in TRACES if file.partition(".")[0] == name)
    trace = read_trace(folder / file)
    return trace if limit is None else trace.first(limit)


@lru_cache(maxsize=8)
def footprint_of(folder: Path, name: str, model: str, limit: int | None) -> Footprint:
    """Return the working set of a trace for a model."""
    return footprint(trace_of(folder, name, limit), simulated_model(model))


def num_blocks_of(folder: Path, name: str, model: str, share: str, limit: int | None) -> int:
    """Return the blocks of a pool that holds a share of a trace's working set."""
    ideal = footprint_of(folder, name, model, limit)
    return ceil(ideal.num_blocks * Fraction(share)) + 1  # One is the null block.
