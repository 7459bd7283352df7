"""What an engine's `/metrics` say of its load: a few lines out of a thousand.

Invariant: whatever the bytes are, the time is linear in their number, and no number that comes out
is negative or infinite. A whole parser of the format takes 10 ms for what vLLM writes, each second
and pod; so lines are looked up by their name, and only those are read. The lines of a name stand
together, as the format demands.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kvbraid.policy import EngineLoad

MOST_SERIES: Final = 512
"""Of one name; vLLM's adapters have one for each combination that has ever run."""

LONGEST_LINE: Final = 4096
"""Bytes of a line; a longer one is not read."""

MOST_LABELS: Final = 32
"""Of a line; one with more is not read."""


class _Names(NamedTuple):
    """What an engine calls its load, and the label that has the data-parallel rank."""

    running: bytes
    waiting: bytes
    usage: bytes
    rank: str


_ENGINES: Final = (
    _Names(
        running=b"vllm:num_requests_running",
        waiting=b"vllm:num_requests_waiting",
        usage=b"vllm:kv_cache_usage_perc",
        rank="engine",
    ),
    _Names(
        running=b"sglang:num_running_reqs",
        waiting=b"sglang:num_queue_reqs",
        usage=b"sglang:token_usage",
        rank="dp_rank",
    ),
)
_ADAPTERS: Final = b"vllm:lora_requests_info"
_PART: Final = "priority"  # SGLang also writes the requests of each priority, beside all of them.

_TAIL: Final = re.compile(r"\{(.*)\}[ \t]+(\S{1,32})(?:[ \t]+-?[0-9]{1,20})?[ \t\r]*")
_LABEL: Final = re.compile(r'[ ,]*([a-zA-Z_]\w{0,127})="((?:[^"\\]|\\.)*)"')
_MOST: Final = 1 << 20  # Requests, and adapters. More is no number of an engine.
_Labels = Mapping[str, str]


def read_engine_load(body: bytes, num_ranks: int) -> dict[int, EngineLoad]:
    """Return the load of each rank of which the text says how many requests wait there.

    Of a pod with one rank, the series of all ranks are summed up. Of others, a series counts for
    the rank that its label names.
    """
    body = b"\n" + body
    for names in _ENGINES:
        waiting = _by_rank(body, names.waiting, names.rank, num_ranks)
        if waiting:
            running = _by_rank(body, names.running, names.rank, num_ranks)
            usage = _by_rank(body, names.usage, names.rank, num_ranks)
            loras = _full_of(body, names.rank, num_ranks)
            return {
                rank: EngineLoad(
                    running=int(running.get(rank, 0)),
                    waiting=int(number),
                    usage=min(usage.get(rank, 0.0), 1.0),
                    loras=loras.get(rank),
                )
                for rank, number in waiting.items()
            }
    return {}


def _by_rank(body: bytes, name: bytes, label: str, num_ranks: int) -> dict[int, float]:
    """Return a number for each rank: tensor-parallel ranks repeat that of theirs."""
    named: dict[str, float] = {}
    for labels, value in _series(body, name):
        if 0 <= value <= _MOST and not labels.get(_PART):
            rank = labels.get(label, "")
            named[rank] = max(value, named.get(rank, 0))
    if num_ranks == 1:
        return {0: min(sum(named.values()), _MOST)} if named else {}
    return {int(rank): value for rank, value in named.items() if _is_rank(rank, num_ranks)}


def _full_of(body: bytes, label: str, num_ranks: int) -> dict[int, frozenset[str]]:
    """Return the adapters of each rank that has no room for another one; the newest series counts.

    There may be a series for each combination that has ever run. If they are too many to be read,
    nobody knows which is the newest.
    """
    newest: dict[str, tuple[float, _Labels]] = {}
    number = 0
    for number, (labels, at) in enumerate(_series(body, _ADAPTERS), 1):  # noqa: B007
        rank = labels.get(label, "0" if num_ranks == 1 else "")
        if at >= newest.get(rank, (0.0, {}))[0]:
            newest[rank] = (at, labels)
    found = {}
    for rank, (_, labels) in newest.items() if number < MOST_SERIES else ():
        listed = (labels.get(f"{kind}_lora_adapters", "") for kind in ("running", "waiting"))
        names = {name for each in listed for name in each.split(",") if name}
        room = labels.get("max_lora", "")
        if room.isascii() and room.isdigit() and len(names) >= min(float(room), _MOST) > 0:
            found[0 if num_ranks == 1 else rank] = frozenset(names)
    return {int(rank): names for rank, names in found.items() if _is_rank(str(rank), num_ranks)}


def _is_rank(text: str, num_ranks: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5 and int(text) < num_ranks


def _series(body: bytes, name: bytes) -> Iterator[tuple[_Labels, float]]:
    """Yield the labels and the value of each line with a name; skip what is no such line."""
    begin = b"\n" + name + b"{"
    end = body.find(begin)
    for _ in range(MOST_SERIES if end >= 0 else 0):
        start = end + len(begin) - 1
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        if end - start <= LONGEST_LINE:
            found = _read(body[start:end].decode("utf-8", "replace"))
            if found is not None:
                yield found
        if not body.startswith(begin, end):
            return


def _read(tail: str) -> tuple[_Labels, float] | None:
    """Return the labels and the value of a line whose name is cut off; None if it is none."""
    line = _TAIL.fullmatch(tail)
    if line is None:
        return None
    try:
        value = float(line[2])
    except ValueError:
        return None
    labels, text, at = {}, line[1], 0
    for _ in range(MOST_LABELS):
        found = _LABEL.match(text, at)
        if found is None:
            break
        labels[found[1]] = found[2]
        at = found.end()
    return None if text[at:].strip(" ,") else (labels, value)
