"""The resume rule for one holder: how much of a request one cache can reuse.

The native core computes it: one holder is one bit of the words that serve a whole fleet. A holder
is described by the boundaries, in tokens, at which each of its groups holds an entry: a block that
ends there, or a state taken there. Nothing here keeps state or knows where the entries come from.
"""

from collections.abc import Collection, Mapping, Sequence
from math import gcd
from typing import Final, NamedTuple, TypeAlias

from kvbraid._native import first_read as native_first_read
from kvbraid._native import needed_blocks as first_and_end
from kvbraid._native import resume as resume_words
from kvbraid._native import resume_accepted
from kvbraid.errors import InvalidValueError
from kvbraid.reading import check, whole
from kvbraid.spec import EngineDialect, GroupSpec, Topology

Entries: TypeAlias = Mapping[int, Collection[int]] | Sequence[Collection[int]]
"""For each group (by index), the boundaries in tokens at which it holds an entry."""


class HeldWords(NamedTuple):
    """What up to 64 holders hold. For each group there is one word per boundary, with one bit per
    holder: one list of words for whole blocks, another for entries inside blocks. `unit` is the
    number of tokens from one boundary to the next."""

    unit: int
    whole: Sequence[Sequence[int]]
    partial: Sequence[Sequence[int]]


class ResumeQuery(NamedTuple):
    """How many tokens a request has, and a mask of the holders that are asked.

    With `strict`, groups of unknown kind or chunk need every block; without it, they need nothing.
    """

    num_tokens: int
    mask: int
    strict: bool = True


_ONE_HOLDER: Final = 1
_TOKEN: Final = whole(0, (1 << 32) - 2)


def resume(
    topology: Topology,
    num_tokens: int,
    held: Entries,
    *,
    dialect: EngineDialect = EngineDialect.PURE,
    strict: bool = True,
) -> int:
    """Return how many leading tokens of a request need not be computed.

    Args:
        topology: The holder's groups and alignment.
        num_tokens: Tokens of the request; at least one of them is always left to compute.
        held: Entries along this request, per group; a group without entries may be missing.
        dialect: The engine whose departures from the rule to follow; by default the rule itself.
        strict: Groups of unknown kind or chunk need every block; with False they need nothing,
            and the answer is an upper bound.

    Raises:
        InvalidValueError: There is an entry at a boundary where the group cannot have one.
    """
    words, query = _words(topology, num_tokens, held), ResumeQuery(num_tokens, _ONE_HOLDER, strict)
    return resume_words(topology, [dialect.value], words, query)[0]


def accepted(
    topology: Topology,
    num_tokens: int,
    held: Entries,
    group: int,
    *,
    dialect: EngineDialect = EngineDialect.PURE,
    strict: bool = True,
) -> list[int] | None:
    """Return the boundaries above 0 that one group accepts, or None if it never restricts.

    Boundaries are in tokens, ascending, at most `num_tokens - 1`. The arguments are those of
    `resume`.
    """
    words, query = _words(topology, num_tokens, held), ResumeQuery(num_tokens, _ONE_HOLDER, strict)
    return resume_accepted(topology, [dialect.value], words, query, group)


def needed_blocks(group: GroupSpec, boundary: int) -> range:
    """Return the blocks of a group that must be held for a resume at `boundary`, in tokens.

    The range is empty if the group needs nothing there. A draft head's group also needs the unit
    that begins at the boundary. With partial hits, full and state groups can be resumed inside a
    block: such a block need not be whole, an entry at the boundary is enough.

    Raises:
        InvalidValueError: The boundary lies inside a block of a window or chunked group, is below
            0, or is larger than the core counts.
    """
    check("boundary", boundary, _TOKEN)
    return range(*first_and_end(group, boundary))


def first_read(group: GroupSpec, token: int) -> int:
    """Return the first token that a group reads to compute a token; that one if it reads none.

    A state counts as the last token that it includes.

    Raises:
        InvalidValueError: The token is below 0, or larger than the core counts.
    """
    check("token", token, _TOKEN)
    return native_first_read(group, token)


def hash_block_size(topology: Topology) -> int:
    """Return the tokens per hash of the engine's chain: configured, or the engine's default."""
    cacheable = [g.block_size for g in topology.groups if g.prefix_cacheable]
    return topology.hash_block_size or gcd(*cacheable) or 1


def _words(topology: Topology, num_tokens: int, held: Entries) -> HeldWords:
    """Set bit 0 of one word per boundary; whole blocks and entries inside blocks are separate."""
    unit = gcd(hash_block_size(topology), topology.alignment or 0)
    num_units = max(num_tokens, 0) // unit
    whole = [[0] * num_units for _ in topology.groups]
    partial = [[0] * num_units for _ in topology.groups]
    for index, boundaries in held.items() if isinstance(held, Mapping) else enumerate(held):
        block_size = topology.groups[index].block_size
        for boundary in boundaries:
            if boundary < 1 or boundary % unit:
                msg = f"group {index}: no entry ends at token {boundary}; entries end every {unit}"
                raise InvalidValueError(msg)
            if boundary <= num_tokens:
                words = whole if boundary % block_size == 0 else partial
                words[index][boundary // unit - 1] = 1
    return HeldWords(unit, whole, partial)
