"""Reads trace files, plain or Zstandard-compressed. The first line tells the form of the file.

A trace without ids of prefixes and without prompts says nothing about a cache and is refused.
"""

import importlib
import io
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from kvbraid.errors import TraceError
from kvbraid.extras import remedy
from kvbraid.sim.traces import mooncake, prompts, sessions
from kvbraid.sim.traces.trace import Trace
from kvbraid.tokenizer import Encode

_Reader: TypeAlias = Callable[[str, Iterable[bytes], str], Trace]

FORMS: Final[tuple[tuple[str, _Reader], ...]] = (
    ("hash_ids", mooncake.read),
    ("reqs", sessions.read),
    ("token_ids", prompts.read),
    ("prompt", prompts.read),
)
"""For each form, the field of the first line that tells it, and its reader."""


def read_trace(path: Path, *, encode: Encode | None = None) -> Trace:
    """Read a trace file. `encode` turns prompts of text into tokens.

    Raises:
        TraceError: The message names the file and what is wrong with it.
    """
    lines = [line for line in _lines(path) if line.strip()]
    if not lines:
        raise TraceError(f"{path}: no line; expected one JSON object per line")
    reader = _reader(lines[0], path)
    if reader is prompts.read:
        reader = partial(prompts.read, encode=encode)
    return reader(path.name.partition(".")[0], lines, str(path))


def _reader(line: bytes, path: Path) -> _Reader:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"{path}: line 1 is not JSON: {error}; expected one JSON object per line"
        raise TraceError(msg) from error
    if isinstance(fields, list) or (isinstance(fields, dict) and "messages" in fields):
        return prompts.read
    for name, reader in FORMS:
        if isinstance(fields, dict) and name in fields:
            return reader
    known = ", ".join(f"`{name}`" for name, _ in FORMS)
    raise TraceError(
        f"{path}: the first line has none of {known}; expected requests with tokens or text, or a "
        "trace that says which prefixes are shared: arrivals and lengths alone tell nothing about "
        "a cache"
    )


def _lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if path.suffix == ".zst":
        data = _decompress(path, data)
    return data.splitlines()


def _decompress(path: Path, data: bytes) -> bytes:
    """Decompress with Python itself (3.14 and later) or with the package zstandard."""
    zstd = _module("compression.zstd") or _module("zstandard")
    if zstd is None:
        raise TraceError(
            f"{path}: reading .zst needs the package zstandard: {remedy('traces')}, or decompress "
            "the file with zstd -d"
        )
    try:
        with zstd.open(io.BytesIO(data), "rb") as file:
            content: bytes = file.read()
    except (zstd.ZstdError, EOFError) as error:
        raise TraceError(f"{path}: {error}") from error
    return content


def _module(name: str) -> Any:  # noqa: ANN401 - two modules with one interface
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
