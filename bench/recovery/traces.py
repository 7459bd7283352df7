"""The traces and models that failed loads are played with, and where the files lie.

Traces are not part of the repository. They are read from the folder that KVBRAID_TRACES names
(`make bench TRACES=folder` sets it), else from `bench/studies/traces`, else from `shared/traces`
beside the repository.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.trace import Trace

from bench.studies.traces import TRACES

ROOT: Final = Path(__file__).resolve().parents[2]

FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "weka": "weka_claude_code_710.rle.jsonl.zst",
        "mooncake": "mooncake_conversation_trace.jsonl.zst",
    }
)

MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "full": "llama-3.1-8b",
        "gptoss": "gpt-oss-120b",
        "gemma3": "gemma-3-27b",
        "qwen3next": "qwen3-next-80b-a3b",
        "llama4": str(ROOT / "tests" / "fixtures" / "models" / "llama-4-scout-17b-16e.json"),
    }
)


def folder() -> Path:
    """Return the folder in which traces are looked for."""
    if named := os.environ.get("KVBRAID_TRACES"):
        return Path(named)
    usual, beside = ROOT / "bench" / "studies" / "traces", ROOT.parent / "shared" / "traces"
    return beside if beside.is_dir() and not usual.is_dir() else usual


def lacks(trace: str) -> str:
    """Say what to fetch if the file of a trace is not there; empty if it is."""
    name = FILES[trace]
    if (folder() / name).exists():
        return ""
    return f"the folder {folder()} lacks {name} ({TRACES[name]}); TRACES=folder chooses one"


@lru_cache(maxsize=1)
def trace_of(trace: str, num_requests: int | None) -> Trace:
    """Read a trace, or its first requests.

    Raises:
        TraceError: The file cannot be read.
    """
    read = read_trace(folder() / FILES[trace])
    return read if num_requests is None else read.first(num_requests)


def model_of(model: str) -> SimulatedModel:
    """Return a model by its name in this module."""
    return simulated_model(MODELS[model])
