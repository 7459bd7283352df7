"""What the tables of runs hold, as plain data: the input when there is no live cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbraid.ids import BlockId
from kvbraid.spec import Topology


class HeldState(NamedTuple):
    """A state in a request's table: the tokens that it covers, and its position."""

    num_tokens: int
    position: int


class Place(NamedTuple):
    """A position in the table of one group."""

    group: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """What one run holds.

    Attributes:
        blocks: The block tables by group; 0 where there is no block.
        states: By group, the states that the tables have; empty for other kinds.
        findable: Where the table has no block any more: the blocks that a look-up finds there by
            the request's own hash. The run may have written them before it gave them back. Where
            it has a block, those that hashes find which end inside that block: the state that was
            kept there may live on in a copy. A state inside a block that the run started with is
            left out.
    """

    blocks: Sequence[Sequence[BlockId]]
    states: Sequence[Sequence[HeldState]]
    findable: Mapping[Place, Sequence[BlockId]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The tables of all runs that go on, and the groups that they belong to."""

    topology: Topology
    num_blocks: int
    tables: Mapping[int, RunTables]
