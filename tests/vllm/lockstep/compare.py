"""Runs one log of operations on two caches at once, and compares everything after each.

Invariant: after every operation both sides return the same, and then have the same number of free
blocks, free queue, block tables, resident copies and events. The first difference ends the run as
a `MismatchError`. Operations name blocks by where they came from: a log can be replayed in part.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tests.vllm.lockstep.side import Side


class Op(NamedTuple):
    """One operation: a method of `Side`, and its arguments.

    Some take a label or positions instead of block ids: `take_work(label, caller_frees)` and
    `pop_blocks(key, label)` keep what they return, `free_blocks(label)` frees it (the last block
    of a popped table first), `forget(positions)` means the blocks at (key, group, index).
    """

    name: str
    args: tuple[Any, ...]


class MismatchError(AssertionError):
    """The two sides differ: in what, and how each has it."""

    def __init__(self, index: int, op: Op, what: str, difference: str) -> None:
        super().__init__(f"operation {index}, {op.name}: {what} differ\n{difference}")
        self.index = index
        self.op = op
        self.what = what


class EngineFailedError(Exception):
    """The truth itself raised: the engine would have died, and there is nothing to compare."""


class Pair:
    """Two sides in lock-step. `left` is the truth: what it returns is what `run` returns."""

    def __init__(self, left: Side, right: Side, *, drains_events_late: bool) -> None:
        self._left = left
        self._right = right
        self._drains_events_late = drains_events_late
        self._live: list[int] = []
        self._held: dict[int, list[int]] = {}
        self.log: list[tuple[Op, object]] = []
        self.num_pressed = 0
        self.last_tables: dict[int, list[list[int]]] = {}
        self.num_free_blocks = left.num_free_blocks()

    def run(self, name: str, *args: Any) -> Any:  # noqa: ANN401 - as the methods of `Side`.
        """Do one operation on both sides, compare, and return what `left` returned."""
        op = Op(name, args)
        concrete = self._concrete(op)
        try:
            expected = getattr(self._left, name)(*concrete)
        except (AssertionError, ValueError) as error:
            raise EngineFailedError(f"operation {len(self.log)}: {op}") from error
        self.log.append((op, expected))
        try:
            got = getattr(self._right, name)(*concrete)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # A panic of a native core is no Exception.
            raise MismatchError(
                len(self.log) - 1, op, "results", f"  expected {expected!r}\n  raised {error!r}"
            ) from error
        self._require("results", expected, got)
        self._keep(op, expected)
        self._compare_states()
        return expected

    def _concrete(self, op: Op) -> tuple[Any, ...]:
        if op.name == "take_work":
            return op.args[1:]
        if op.name == "pop_blocks":
            return op.args[:1]
        if op.name == "free_blocks":
            return (self._held.pop(op.args[0], []),)
        if op.name == "forget":
            return (self._at(op.args[0]),)
        return op.args

    def _at(self, positions: Sequence[tuple[int, int, int]]) -> list[int]:
        found: list[int] = []
        for key, group, index in positions:
            table = self.last_tables[key][group] if key in self.last_tables else []
            found += table[index : index + 1]
        return [block_id for block_id in found if block_id]

    def _keep(self, op: Op, result: Any) -> None:  # noqa: ANN401 - as the methods of `Side`.
        if op.name == "add":
            self._live.append(op.args[0].key)
        elif op.name == "release":
            self._live = [key for key in self._live if key not in op.args[0]]
        elif op.name == "pop_blocks":
            self._live.remove(op.args[0])
            self._held[op.args[1]] = result[::-1]
        elif op.name == "take_work" and op.args[1]:
            self._held[op.args[0]] = [block_id for copy in result[0] for block_id in copy]

    def _compare_states(self) -> None:
        left, right = self._left, self._right
        queue, resident = left.free_queue(), left.resident()
        tables = left.tables(self._live)
        self.num_free_blocks = left.num_free_blocks()
        self._require("numbers of free blocks", self.num_free_blocks, right.num_free_blocks())
        self._require("block tables", tables, right.tables(self._live))
        self._require("resident copies", resident, right.resident())
        self._require("free queues", queue, right.free_queue())
        if not self._drains_events_late or self.log[-1][0].name == "take_events":
            self._require_events(left.take_events(), right.take_events())
        self.last_tables = dict(zip(self._live, tables, strict=True))
        self.num_pressed += not queue or any(queue[0] in ids for ids in resident.values())

    def _require_events(self, expected: bytes, got: bytes) -> None:
        if expected != got:
            self._require("events", _decoded(expected), _decoded(got))
            self._require("encoded events", expected.hex(" "), got.hex(" "))

    def _require(self, what: str, expected: object, got: object) -> None:
        if expected != got:
            op, _ = self.log[-1]
            raise MismatchError(len(self.log) - 1, op, what, difference(expected, got))


def _decoded(payload: bytes) -> list[Any]:
    """Return the events of a batch, as plain maps."""
    return list(msgspec.msgpack.decode(payload)[1]) if payload else []


def difference(expected: object, got: object) -> str:
    """Return the parts that differ, a line each; equal entries of maps and lists are left out."""
    lines = list(_differences(expected, got, ""))
    return "\n".join(lines[:20] + [f"  and {len(lines) - 20} more"] * (len(lines) > 20))


def _differences(expected: Any, got: Any, path: str) -> list[str]:  # noqa: ANN401 - any value.
    if expected == got:
        return []
    lines: list[str] = []
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in dict.fromkeys((*expected, *got)):
            lines += _differences(expected.get(key), got.get(key), f"{path}[{_short(key)}]")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, pair in enumerate(zip(expected, got, strict=True)):
            lines += _differences(*pair, f"{path}[{index}]")
    else:
        lines.append(f"  {path or 'all'}: expected {_short(expected)}, got {_short(got)}")
    return lines


def _short(value: Any) -> str:  # noqa: ANN401 - any value.
    if isinstance(value, bytes):
        return value.hex()[:12]
    if isinstance(value, tuple):
        return "(" + ", ".join(_short(part) for part in value) + ")"
    text = repr(value)
    return text if len(text) <= 400 else text[:400] + "..."
