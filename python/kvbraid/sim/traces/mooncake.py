"""Traces in Mooncake's form: one request a line, with ids of its 512-token blocks.

A line has `input_length` and `hash_ids`. `timestamp` and `output_length` are not read, because the
cache sees requests one after the other. Ids are chained; the id of an incomplete last block is
left out. The file does not say which requests form a conversation, so requests that share their
first block count as one; if all requests share the first block, the second block decides.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from kvbraid.errors import TraceError
from kvbraid.sim.traces.trace import Trace, TraceRequest, check_chained

BLOCK_TOKENS: Final = 512

_Row: TypeAlias = tuple[int, "array[int]"]  # Tokens and ids.


def read(name: str, lines: Iterable[bytes], where: str) -> Trace:
    """Read all lines of a trace.

    Raises:
        TraceError: The message names the line and what is wrong with it.
    """
    rows = [_row(line, f"{where}: line {number}") for number, line in enumerate(lines, start=1)]
    check_chained(((number, ids) for number, (_, ids) in enumerate(rows, start=1)), where)
    is_shared = len(rows) > 1 and len({ids[0] for _, ids in rows}) == 1
    return Trace(
        name=name,
        block_tokens=BLOCK_TOKENS,
        num_requests=len(rows),
        play=lambda: _play(rows, is_shared=is_shared),
    )


def _play(rows: Sequence[_Row], *, is_shared: bool) -> Iterator[TraceRequest]:
    for num_tokens, ids in rows:
        conversation = ids[1] if is_shared and len(ids) > 1 else ids[0]
        yield TraceRequest(conversation, num_tokens, ids[: num_tokens // BLOCK_TOKENS])


def _row(line: bytes, where: str) -> _Row:
    try:
        fields = json.loads(line)
        num_tokens, ids = int(fields["input_length"]), array("q", fields["hash_ids"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else error
        raise TraceError(f"{where}: {what}") from error
    expected = -(-num_tokens // BLOCK_TOKENS)
    if num_tokens < 1 or len(ids) != expected:
        raise TraceError(
            f"{where}: {len(ids)} ids for {num_tokens} tokens; expected at least one token, and "
            f"{max(1, expected)} ids of {BLOCK_TOKENS} tokens"
        )
    return num_tokens, ids
