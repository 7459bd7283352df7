"""What a load has to fill, and whether it was enough to go on from: arithmetic over tables."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from kvbraid.cache.tables import RequestTables
from kvbraid.ids import BlockId
from kvbraid.loads import Target
from kvbraid.recovery.decision.run import GivenBack
from kvbraid.resume import first_read
from kvbraid.spec import GroupSpec, SpecKind

BlockTables = Sequence[Sequence[BlockId]]

_as_target: Final = partial(tuple.__new__, Target)  # A third of the time of a call.


def targets_of(
    groups: Sequence[GroupSpec], tables: BlockTables, start: int, end: int
) -> Iterator[Target]:
    """Yield the blocks that hold the tokens from `start` to `end`, as far as the tables have them.

    Of a state group, that is the one state at the end.
    """
    for group, (spec, table) in enumerate(zip(groups, tables, strict=True)):
        first, last = start // spec.block_size, -(-end // spec.block_size)
        if spec.kind is SpecKind.MAMBA:
            first = last - 1
        places = enumerate(table[first:last], start=first)
        yield from map(_as_target, ((group, at, block) for at, block in places if block))


def read_by_copies(
    tables: RequestTables, copies: Sequence[tuple[BlockId, BlockId]]
) -> Iterator[tuple[int, GivenBack]]:
    """Yield which request has read which block, because one of its own becomes a copy of it.

    `copies` are (source, destination): a hit inside a block. Other copies are in no table.
    """
    places = tables.requests_of([destination for _, destination in copies])
    for source, destination in copies:
        for request, group, position in places.of(destination):
            yield request, GivenBack(group, position, source, copied=True)


def can_compute(groups: Sequence[GroupSpec], tables: BlockTables, token: int) -> bool:
    """Return whether a token that was loaded itself can be computed over the same tables.

    That reads what a window or chunk may not have loaded, and a state that has moved on.
    """
    for spec, table in zip(groups, tables, strict=True):
        first, size = first_read(spec, token), spec.block_size
        is_short = first < token and len(table) * size < token
        if spec.kind is SpecKind.MAMBA or is_short or not all(table[first // size :]):
            return False
    return True


def can_end_before(groups: Sequence[GroupSpec], token: int) -> bool:
    """Return whether a load may end right before a token that is computed over it.

    Inside a block, the token has to read what was loaded there. With a window of one token, or a
    chunk that begins inside the block, it reads nothing of it: the failure of the load would not
    concern the request, which would complete the block and let others find it.
    """
    return all(
        token % spec.block_size == 0 or first_read(spec, token) < token
        for spec in groups
        if spec.kind is not SpecKind.MAMBA
    )


def useful_end(
    groups: Sequence[GroupSpec],
    num_tokens: int,
    alignment: int,
    state_ends: Sequence[int] | None = None,
) -> int:
    """Return where a load of all `num_tokens` of a request ends, so that it is used.

    The last token is computed even if it was loaded. Attention loads all tokens where that leaves
    what the last one reads, and all but the last one otherwise. A state is had at multiples of
    `alignment`, or where `state_ends` says, and what comes after it is computed; 0 if it is had
    nowhere. So it is if no load can end right before the last token.
    """
    last = num_tokens - 1
    boundary, may_end_inside = last // alignment * alignment, can_end_before(groups, last)
    if all(spec.kind is not SpecKind.MAMBA for spec in groups):
        reads_alike = all(_reads_alike(spec, last) for spec in groups)
        return last + reads_alike if may_end_inside else boundary
    ends = [boundary] if state_ends is None else [e for e in state_ends if 0 < e <= last]
    return max((e for e in ends if not e % alignment or (e == last and may_end_inside)), default=0)


def _reads_alike(spec: GroupSpec, token: int) -> bool:
    """Whether a token reads no block of a group that the next token does not read."""
    return (
        first_read(spec, token + 1) // spec.block_size
        <= first_read(spec, token) // spec.block_size
    )
