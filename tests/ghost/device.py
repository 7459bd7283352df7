"""The ghost device: every block slot carries what it really holds, token by token.

A value is the number of the prefix that ends with the token, times the number of groups, plus the
group. A state block has one value: that of the prefix which the state covers. What is not above
zero is garbage:

    0              never written, or zeroed
    -1             half written: by a load that has not ended, or by two writers
    -2 and below   left by fault number 0, 1, 2, ...

A step whose attention reads anything but what it should is tainted, and so is all that it writes.
If one of its tokens was sampled by a tainted step, so is what it writes of that and later tokens.

Recovery knows blocks, not slots: a step that reads right slots of a block counts as tainted if
other slots are garbage. `may_have_told` has who was told a token by such a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.spec import GroupSpec, SpecKind

from tests.ghost.truth import Life

EMPTY: Final = 0
TORN: Final = -1


def garbage_of(fault: int) -> int:
    return -2 - fault


def fault_of(value: int) -> int | None:
    """The fault that left a value; None if no fault did."""
    return -2 - value if value <= -2 else None


class Taint(NamedTuple):
    """The first wrong value that was read, and where."""

    value: int
    where: str


@dataclass(slots=True)
class Computation:
    """What one step computes of one request, with the block tables of that step."""

    request: int
    life: Life
    expected: list[list[int]]
    start: int
    end: int
    tables: Sequence[Sequence[int]]
    samples: bool = True


class Device:
    """The blocks of one pool, and the tokens that were sampled last.

    `writes` counts, by block, how often it was written: two writers at once tear a block.
    """

    def __init__(self, groups: Sequence[GroupSpec], num_blocks: int) -> None:
        self.groups = groups
        self.cells: list[list[int]] = [[] for _ in range(num_blocks)]
        self.writes = [0] * num_blocks
        self._sampled: dict[tuple[int, int], Taint] = {}
        self._tainted: set[int] = set()
        self.may_have_told: set[int] = set()
        self.is_state = [spec.kind is SpecKind.MAMBA for spec in groups]

    def expected(self, life: Life) -> list[list[int]]:
        """By group, the values of all tokens of a request."""
        count = len(self.groups)
        return [[node * count + group for node in life.nodes] for group in range(count)]

    def cell(self, block: int, group: int) -> list[int]:
        """What a block holds, with as many slots as blocks of this group have."""
        size = 1 if self.is_state[group] else self.groups[group].block_size
        cell = self.cells[block]
        if len(cell) != size:
            cell = self.cells[block] = (cell + [EMPTY] * size)[:size]
        return cell

    # What moves without being computed.

    def copy(self, source: int, destination: int) -> None:
        self.cells[destination] = list(self.cells[source])
        self._taint([destination], is_tainted=source in self._tainted)
        self.writes[destination] += 1

    def zero(self, block: int) -> None:
        self.cells[block] = [EMPTY] * len(self.cells[block])
        self._taint([block], is_tainted=False)
        self.writes[block] += 1

    def fill(self, block: int, values: Sequence[int]) -> None:
        self.cells[block] = list(values)
        self._taint([block], is_tainted=min(values, default=EMPTY) <= garbage_of(0))
        self.writes[block] += 1

    # What is computed.

    def run(self, work: Computation) -> Taint | None:
        """Compute, and sample the token after `end`; return what was wrong with what was read."""
        first, taint = self._input_taint(work)
        for group in range(len(self.groups)):
            if read := self._read(work, group):
                first, taint = work.start, read
                break
        is_tainted = taint is not None or self._reads_tainted(work)
        for group in range(len(self.groups)):
            self._write(work, group, first, taint)
            self._mark(work, group, is_tainted=is_tainted)
        if is_tainted and work.samples:
            self.may_have_told.add(work.request)
        if taint and work.samples:
            self._sampled[work.request, work.end] = taint
        elif work.samples:
            self._sampled.pop((work.request, work.end), None)
        return taint

    def _input_taint(self, work: Computation) -> tuple[int, Taint | None]:
        """The first of its tokens that was sampled by a tainted step, and what was wrong then."""
        for token in range(max(work.start, work.life.num_prompt_tokens), work.end):
            if taint := self._sampled.get((work.request, token)):
                return token, taint
        return work.end, None

    def _reads_tainted(self, work: Computation) -> bool:
        return any(
            not self._tainted.isdisjoint(table[slice(*self._positions_read(group, work.start))])
            for group, table in enumerate(work.tables)
        )

    def _taint(self, blocks: Sequence[int], *, is_tainted: bool) -> None:
        (self._tainted.update if is_tainted else self._tainted.difference_update)(blocks)

    def _positions_read(self, group: int, start: int) -> tuple[int, int]:
        spec, end = self.groups[group], -(-start // self.groups[group].block_size)
        first = first_read(spec, start)
        return (end - 1 if self.is_state[group] else first // spec.block_size, end)

    def _mark(self, work: Computation, group: int, *, is_tainted: bool) -> None:
        """Note which blocks recovery takes as garbage of those that a step has written."""
        size, table = self.groups[group].block_size, work.tables[group]
        # A step goes on writing a block of attention where the one before has ended.
        is_begun = work.start % size != 0 and not self.is_state[group]
        first = work.start // size
        if is_begun and table[first] in self._tainted:
            first += 1
        self._taint(table[first : -(-work.end // size)], is_tainted=is_tainted)

    def _read(self, work: Computation, group: int) -> Taint | None:
        spec, table, start = self.groups[group], work.tables[group], work.start
        first = first_read(spec, start)
        if first >= start:
            return None
        size, expected = spec.block_size, work.expected[group]
        if self.is_state[group]:
            position = -(-start // size) - 1
            return self._compare(table, group, position, [expected[start - 1]], 0)
        for position in range(first // size, -(-start // size)):
            low, high = max(first, position * size), min(start, (position + 1) * size)
            taint = self._compare(
                table, group, position, expected[low:high], low - position * size
            )
            if taint:
                return taint
        return None

    def _compare(
        self, table: Sequence[int], group: int, position: int, expected: Sequence[int], offset: int
    ) -> Taint | None:
        block = table[position] if position < len(table) else 0
        if not block:
            return Taint(TORN, f"group {group} has no block at position {position}")
        cell = self.cells[block]
        if cell[offset : offset + len(expected)] == list(expected):
            return None
        for slot, value in enumerate(expected, offset):
            found = cell[slot] if slot < len(cell) else EMPTY
            if found != value:
                at = f"slot {slot} of block {block} (group {group}, position {position})"
                # A fault's garbage stays the fault's; what is whole but wrong is nobody's.
                return Taint(min(found, TORN), f"{at} holds {found} instead of {value}")
        return None

    def _write(self, work: Computation, group: int, first: int, taint: Taint | None) -> None:
        """Write right values up to `first`, and garbage from there on."""
        spec, table = self.groups[group], work.tables[group]
        size, start, end = spec.block_size, work.start, work.end
        expected = work.expected[group]
        if self.is_state[group]:
            value = taint.value if taint else expected[end - 1]
            self._put(table, group, -(-end // size) - 1, 0, [value])
            return
        for position in range(start // size, -(-end // size)):
            low, high = max(start, position * size), min(end, (position + 1) * size)
            values = list(expected[low:high])
            if taint and high > first:
                values[max(first - low, 0) :] = [taint.value] * (high - max(first, low))
            self._put(table, group, position, low - position * size, values)

    def _put(
        self, table: Sequence[int], group: int, position: int, slot: int, values: Sequence[int]
    ) -> None:
        block = table[position]
        assert block, f"a step writes into the null block: group {group}, position {position}"
        self.cell(block, group)[slot : slot + len(values)] = values
        self.writes[block] += 1


def first_read(spec: GroupSpec, start: int) -> int:
    """The first token that attention at token `start` reads."""
    if spec.kind.is_window:
        assert spec.window is not None
        return max(0, start - spec.window + 1)
    if spec.kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        return start // spec.chunk * spec.chunk if spec.chunk else 0
    if spec.kind is SpecKind.MAMBA:
        return max(0, start - 1)
    return 0
