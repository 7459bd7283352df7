"""Traffic to simulate a cache with: traces, people's own prompts, recorded engines."""

from collections.abc import Iterator
from pathlib import Path

from kvbraid.errors import CaptureError, InvalidValueError, TraceError
from kvbraid.sim.captures.read import Capture, Lookup, read_capture
from kvbraid.sim.traces.prompts import TracePrompt, trace_of
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.trace import Trace
from kvbraid.tokenizer import load_tokenizer


def read_traffic(path: Path, *, tokenizer: Path | None = None) -> Trace:
    """Read a file of `docs/simulate.md`, or a folder that `kvbraid replay` takes.

    `tokenizer` is a tokenizer.json, for prompts of text.

    Raises:
        TraceError: The file cannot be read; the message names it and what is wrong with it.
        CaptureError: The folder cannot be read, likewise.
        InvalidValueError: There is no such tokenizer.
    """
    if not path.exists():
        msg = f"{path} does not exist; give a file of requests, or a folder of `kvbraid replay`"
        raise TraceError(msg)
    if not path.is_dir():
        return read_trace(path, encode=None if tokenizer is None else load_tokenizer(tokenizer))
    if tokenizer is not None:
        msg = f"{path} is a recorded engine, whose prompts are tokens; leave --tokenizer out"
        raise InvalidValueError(msg)
    try:
        capture = read_capture(path)
    except CaptureError as error:
        msg = f"{error}; a folder has config.json, events.bin and requests.jsonl"
        raise CaptureError(msg) from error
    return trace_of(capture.name, _prompts(capture), f"{path}: request")


def _prompts(capture: Capture) -> Iterator[TracePrompt]:
    """Yield the prompts in the order in which the engine looked them up; resets are left out."""
    for operation in capture.operations:
        if isinstance(operation, Lookup):
            separate = (operation.cache_salt, operation.extra_key)
            yield TracePrompt(
                tokens=operation.token_ids,
                cache_salt="\0".join(filter(None, separate)) or None,
                lora=operation.lora,
            )
