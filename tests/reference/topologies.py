"""Random topologies and holders for tests of the resume rule.

Blocks are a few tokens long, so that a brute force over tokens stays cheap and every odd ratio
between block, window, chunk and alignment turns up often.
"""

from dataclasses import dataclass
from math import lcm
from random import Random

from hypothesis import strategies as st
from kvbraid.spec import GroupSpec, SpecKind, Topology

UP_TO_EIGHT = st.integers(1, 8)
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
BLOCK_RATIOS = ((1,), (1, 2), (2, 1, 4), (2, 3), (1, 3))


@dataclass(frozen=True)
class Case:
    """A request in front of several holders."""

    topology: Topology
    num_tokens: int
    holders: tuple[tuple[frozenset[int], ...], ...]


@st.composite
def groups(draw: st.DrawFn, hash_block: int, ratios: tuple[int, ...], eagle: bool) -> GroupSpec:
    kind = draw(st.sampled_from(SpecKind))
    block_size = hash_block * draw(st.sampled_from(ratios))
    window = draw(st.integers(1, 5 * block_size)) if kind.is_window else None
    chunk = None
    if kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        chunk = draw(st.one_of(st.none(), st.integers(1, 5 * block_size)))
    return GroupSpec(
        kind=kind,
        block_size=block_size,
        window=window,
        chunk=chunk,
        eagle=eagle and draw(st.booleans()),
        prefix_cacheable=draw(st.sampled_from((True, True, True, False))),
        variant=draw(st.sampled_from((0, 0, 0, 1))),
    )


@st.composite
def topologies(draw: st.DrawFn, num_groups: st.SearchStrategy[int]) -> Topology:
    hash_block = draw(st.sampled_from((1, 2, 4)))
    ratios = draw(st.sampled_from(BLOCK_RATIOS))
    eagle = draw(st.booleans())
    count = draw(num_groups)
    # Many groups are few distinct ones: that is how published layouts come to have 32.
    distinct = draw(st.lists(groups(hash_block, ratios, eagle), min_size=1, max_size=8))
    chosen = tuple(distinct[draw(st.integers(0, len(distinct) - 1))] for _ in range(count))
    smallest = lcm(*(g.block_size for g in chosen))
    return Topology(
        groups=chosen,
        alignment=draw(st.sampled_from((None, smallest, smallest, 2 * smallest))),
        hash_block_size=hash_block,
        partial_hits=draw(st.booleans()),
        replay_tokens=draw(st.sampled_from((0, 0, 0, 1, 3, 8))),
    )


@st.composite
def engine_groups(
    draw: st.DrawFn, hash_block: int, ratios: tuple[int, ...], fixed: bool
) -> GroupSpec:
    """A group as vLLM could have it: with `fixed`, finders that know no interior boundaries have
    blocks of one hash block, and no chunk is shared with a draft head."""
    kinds = [SpecKind.FULL_ATTENTION, SpecKind.SLIDING_WINDOW, SpecKind.MAMBA]
    kind = draw(
        st.sampled_from([*kinds, SpecKind.MLA_ATTENTION, SpecKind.CHUNKED_LOCAL_ATTENTION])
    )
    is_coarse = not fixed or kind.is_full or kind is SpecKind.MAMBA
    block_size = hash_block * (draw(st.sampled_from(ratios)) if is_coarse else 1)
    is_chunked = kind is SpecKind.CHUNKED_LOCAL_ATTENTION
    sizes = st.sampled_from((1, 2, block_size, block_size + 1, 2 * block_size, 3 * block_size + 2))
    return GroupSpec(
        kind=kind,
        block_size=block_size,
        window=draw(sizes) if kind.is_window else None,
        chunk=draw(st.integers(1, 4 * block_size)) if is_chunked else None,
        eagle=not is_chunked and draw(st.booleans()),
    )


@st.composite
def engine_topologies(draw: st.DrawFn) -> Topology:
    """Topologies that vLLM accepts, one to six groups."""
    hash_block = draw(st.sampled_from((1, 2, 4)))
    partial_hits = draw(st.sampled_from((False, False, True)))
    ratios = draw(st.sampled_from(BLOCK_RATIOS))
    one = engine_groups(hash_block, ratios, partial_hits)
    chosen = draw(st.lists(one, min_size=1, max_size=6))
    chosen += draw(st.sampled_from(([], [], chosen[:2])))
    if len(chosen) == 1:
        hash_block, partial_hits = chosen[0].block_size, False
    aligned = lcm(*(g.block_size for g in chosen))
    if not partial_hits:
        # Chunked groups do not exist beside other block sizes.
        chunked = [g for g in chosen if g.kind is SpecKind.CHUNKED_LOCAL_ATTENTION]
        chosen = [g for g in chosen if g not in chunked or g.block_size == aligned] or [FULL]
        aligned = lcm(*(g.block_size for g in chosen))
    if len(chosen) == 1:
        hash_block, partial_hits = chosen[0].block_size, False
    return Topology(
        groups=tuple(chosen),
        alignment=aligned,
        hash_block_size=hash_block,
        partial_hits=partial_hits,
    )


def holder(random: Random, topology: Topology, num_tokens: int) -> tuple[frozenset[int], ...]:
    """One holder's entries: mostly dense, with some holes and some groups nearly empty."""
    hash_block = topology.hash_block_size
    assert hash_block is not None
    missing = random.choice((0.0, 0.02, 0.1, 0.3))
    entries = []
    for group in topology.groups:
        odds = random.choice((missing, missing, missing, 0.8))
        # Entries beyond the request must not matter; interior ones need finer hashes.
        ends = range(hash_block, num_tokens + 3 * group.block_size, hash_block)
        interior = random.choice((0.8, 0.3))
        entries.append(
            frozenset(
                end
                for end in ends
                if random.random() >= (interior if end % group.block_size else odds)
            )
        )
    return tuple(entries)


@st.composite
def cases(
    draw: st.DrawFn, num_groups: st.SearchStrategy[int] = UP_TO_EIGHT, max_tokens: int = 60
) -> Case:
    return draw(in_front_of(draw(topologies(num_groups)), max_tokens))


@st.composite
def in_front_of(draw: st.DrawFn, topology: Topology, max_tokens: int = 60) -> Case:
    """A request and up to six holders of one topology."""
    num_tokens = draw(st.integers(0, max_tokens))
    random = Random(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 6))
    holders = tuple(holder(random, topology, num_tokens) for _ in range(count))
    return Case(topology, num_tokens, holders)
