"""Makes a failing log smaller and prints it.

Whole requests are taken out, one after another, as long as the rest fails in the same way and
every answer the scheduler acted on stays what it was: so a shrunk log still keeps the contract.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from tests.vllm.lockstep.compare import MismatchError, Op, Pair

Log: TypeAlias = list[tuple[Op, Any]]
"""Operations, each with what the truth returned."""

MAX_REPLAYS: Final = 150
SHOWN: Final = 25

_OF_ONE_REQUEST: Final = frozenset(
    {"extend", "match", "commit", "free_skipped", "preempt", "pop_blocks", "roll_back"}
)
_OF_MANY_REQUESTS: Final = frozenset({"allocate", "decode", "release"})


def shrink(
    log: Log, mismatch: MismatchError, make_pair: Callable[[], Pair]
) -> tuple[Log, MismatchError]:
    """Return a smaller log, and how it fails."""
    keys = sorted({op.args[0].key for op, _ in log if op.name == "add"}, reverse=True)
    for key in keys[:MAX_REPLAYS]:
        candidate = list(_without(log, key))
        found = _replay(candidate, make_pair())
        if found is not None and (found.what, found.op.name) == (mismatch.what, mismatch.op.name):
            log, mismatch = candidate[: found.index + 1], found
    return log, mismatch


def _replay(log: Log, pair: Pair) -> MismatchError | None:
    """Return how a log fails; None if it does not, or is no longer what a scheduler would do."""
    for op, expected in log:
        try:
            result = pair.run(op.name, *op.args)
        except MismatchError as mismatch:
            return mismatch
        except Exception:  # noqa: BLE001 - the engine asserts what a broken log violates.
            return None
        if op.name in {"match", "reset"} and result != expected:
            return None
        if op.name in {"allocate", "decode"} and len(result) != len(expected):
            return None
    return None


def _without(log: Log, key: int) -> Iterator[tuple[Op, Any]]:
    for op, expected in log:
        name, args = op
        is_its_own = name in _OF_ONE_REQUEST and args[0] == key
        if is_its_own or (name == "add" and args[0].key == key):
            continue
        if name == "forget":
            yield Op(name, ([position for position in args[0] if position[0] != key],)), expected
        elif name in _OF_MANY_REQUESTS:
            kept = [i for i, one in enumerate(args[0]) if getattr(one, "key", one) != key]
            if kept:
                yield _only(kept, op, expected)
        else:
            yield op, expected


def _only(kept: list[int], op: Op, expected: Any) -> tuple[Op, Any]:  # noqa: ANN401 - any result.
    """Return an operation on some of its requests, and what the truth said of these."""
    name, (requests, *rest) = op
    if name == "decode":
        rest = [_at(rest[0], kept)]
    if name != "release":
        expected = _at(expected, [index for index in kept if index < len(expected)])
    return Op(name, (_at(requests, kept), *rest)), expected


def _at(values: list[Any], indices: Iterable[int]) -> list[Any]:
    return [values[index] for index in indices]


def report(log: Log, mismatch: MismatchError) -> str:
    """Return the difference and the operations that led to it, the last ones in full."""
    lines = [str(mismatch), f"  after {len(log)} operations, of which the last are:"]
    first = max(0, len(log) - SHOWN)
    for index, (op, expected) in enumerate(log[first:], first):
        lines.append(f"  {index:4} {op.name}({_arguments(op)}) -> {_cut(expected)}")
    return "\n".join(lines)


def _arguments(op: Op) -> str:
    if op.name == "add":
        request = op.args[0]
        return f"{request.key}, {len(request.tokens)} tokens, {request.extra}"
    if op.name == "extend":
        return f"{op.args[0]}, {len(op.args[1])} tokens"
    return ", ".join(_cut(argument) for argument in op.args)


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else text[:600] + "..."
