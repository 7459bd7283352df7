"""What a load has to fill, and whether it was enough to go on from: arithmetic over tables."""

from collections.abc import Iterator, Sequence

from kvbraid.cache.tables import RequestTables
from kvbraid.ids import BlockId
from kvbraid.recovery.run import GivenBack
from kvbraid.recovery.transfers import Target
from kvbraid.resume import first_read
from kvbraid.spec import GroupSpec, SpecKind

Tables = Sequence[Sequence[BlockId]]


def targets_of(
    groups: Sequence[GroupSpec], tables: Tables, start: int, end: int
) -> Iterator[Target]:
    """Yield the blocks that hold the tokens from `start` to `end`, as far as the tables have them.

    Of a state group, that is the one state at the end.
    """
    for group, (spec, table) in enumerate(zip(groups, tables, strict=True)):
        first, last = start // spec.block_size, -(-end // spec.block_size)
        if spec.kind is SpecKind.MAMBA:
            first = last - 1
        for position, block in enumerate(table[first:last], start=first):
            if block:
                yield Target(group, position, block)


def read_by_copies(
    tables: RequestTables, copies: Sequence[tuple[BlockId, BlockId]]
) -> Iterator[tuple[int, GivenBack]]:
    """Yield which request has read which block, because one of its own becomes a copy of it.

    `copies` are (source, destination): a hit inside a block. Other copies are in no table.
    """
    places = tables.requests_of([destination for _, destination in copies])
    for source, destination in copies:
        for request, group, position in places.of(destination):
            yield request, GivenBack(group, position, source)


def can_compute(groups: Sequence[GroupSpec], tables: Tables, token: int) -> bool:
    """Return whether a token that was loaded itself can be computed over the same tables.

    That reads what a window or chunk may not have loaded, and a state that has moved on.
    """
    for spec, table in zip(groups, tables, strict=True):
        first, size = first_read(spec, token), spec.block_size
        is_short = first < token and len(table) * size < token
        if spec.kind is SpecKind.MAMBA or is_short or not all(table[first // size :]):
            return False
    return True
