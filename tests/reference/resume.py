"""The resume rule as one would explain it on paper: every length is tried, every token looked up.

No bit tricks, no search order, no shortcuts; it shares no code and no structure with the native
core. Entries are given per group as the set of boundaries, in tokens, where an entry ends.
"""

from collections.abc import Collection, Sequence
from math import gcd, lcm

from kvbraid.spec import GroupSpec, SpecKind, Topology

Held = Sequence[Collection[int]]

FULL = {SpecKind.FULL_ATTENTION, SpecKind.MLA_ATTENTION, SpecKind.SINK_FULL_ATTENTION}
WINDOW = {SpecKind.SLIDING_WINDOW, SpecKind.SLIDING_WINDOW_MLA}
NEVER = {SpecKind.ENCODER_ONLY_ATTENTION, SpecKind.CROSS_ATTENTION}


def resume(
    topology: Topology, num_tokens: int, held: Held, *, strict: bool = True, multiple_of: int = 1
) -> int:
    """Try every length from the longest down, perhaps only such multiples."""
    step = lcm(alignment(topology), multiple_of)
    for length in range(num_tokens - 1, 0, -1):
        if length % step == 0 and all(
            accepts(topology, index, entries, length, num_tokens, strict=strict)
            for index, entries in enumerate(held)
        ):
            return max(length - topology.replay_tokens, 0)
    return 0


def alignment(topology: Topology) -> int:
    if topology.partial_hits:
        return hash_block(topology)
    return topology.alignment or lcm(*(g.block_size for g in topology.groups))


def hash_block(topology: Topology) -> int:
    sizes = [g.block_size for g in topology.groups if g.prefix_cacheable]
    return topology.hash_block_size or gcd(*sizes)


def is_boundary(topology: Topology, length: int) -> bool:
    """Whether a hit could end here at all, were everything held."""
    everything = range(1, length + 2 * max(g.block_size for g in topology.groups))
    return length % alignment(topology) == 0 and all(
        accepts(topology, index, everything, length, everything.stop, strict=True)
        for index in range(len(topology.groups))
    )


def restricts(topology: Topology, group: GroupSpec, *, strict: bool) -> bool:
    """Whether a group has a say at all."""
    if not group.prefix_cacheable or group.kind in NEVER:
        return False
    if group.kind in WINDOW and topology.replay_tokens:
        return False
    unsaid = group.kind is SpecKind.UNKNOWN or (
        group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and group.chunk is None
    )
    return strict or not unsaid


def accepts(
    topology: Topology,
    index: int,
    entries: Collection[int],
    length: int,
    num_tokens: int,
    *,
    strict: bool,
) -> bool:
    """Whether one group holds what token `length` needs."""
    group = topology.groups[index]
    if not restricts(topology, group, strict=strict):
        return True
    fine = topology.partial_hits and group.block_size > hash_block(topology)
    if group.kind is SpecKind.MAMBA:
        unit = hash_block(topology) if fine else group.block_size
        return length % unit == 0 and length in entries
    if fine and (group.kind in FULL or group.kind is SpecKind.UNKNOWN):
        unit = hash_block(topology)
        beyond = unit if group.eagle else 0
        reach = full_reach(group.block_size, entries, num_tokens)
        return length % unit == 0 and length + beyond <= reach
    if length % group.block_size:
        return False
    needed = list(range(first_needed(group, length), length))
    if group.eagle:
        needed += range(length, length + group.block_size)
    return all(token_is_held(group.block_size, entries, token, num_tokens) for token in needed)


def first_needed(group: GroupSpec, length: int) -> int:
    """The first token whose KV the next token at `length` still attends to."""
    if group.kind in WINDOW:
        assert group.window is not None
        return max(0, length - (group.window - 1))
    if group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and group.chunk is not None:
        return length // group.chunk * group.chunk
    return 0


def needed_blocks(group: GroupSpec, length: int) -> set[int]:
    """The blocks of the tokens that one group must hold for a resume at `length`."""
    if length == 0 or not group.prefix_cacheable or group.kind in NEVER:
        return set()
    if group.kind is SpecKind.MAMBA:
        return {(length - 1) // group.block_size}
    tokens = list(range(first_needed(group, length), length))
    if group.eagle:
        tokens.append(length)
    return {token // group.block_size for token in tokens}


def token_is_held(block_size: int, entries: Collection[int], token: int, num_tokens: int) -> bool:
    """Whether the block that covers a token is held; the request must have the whole block."""
    end = token // block_size * block_size + block_size
    return end <= num_tokens and end in entries


def full_reach(block_size: int, entries: Collection[int], num_tokens: int) -> int:
    """Whole blocks from the first on, then the furthest entry inside the next block."""
    known = [end for end in entries if end <= num_tokens]
    reach = 0
    while reach + block_size in known:
        reach += block_size
    inside = [end for end in known if reach < end < reach + block_size]
    return max(inside, default=reach)


def present(topology: Topology, num_tokens: int, held: Held) -> int:
    """The longest prefix held by all full groups or, without one, covered by any group."""
    cacheable = [
        (g, e)
        for g, e in zip(topology.groups, held, strict=True)
        if g.prefix_cacheable and g.kind not in NEVER
    ]
    full = [(g, e) for g, e in cacheable if g.kind in FULL]
    if full:
        return min(own_reach(topology, g, e, num_tokens) for g, e in full)
    if topology.replay_tokens:
        cacheable = [(g, e) for g, e in cacheable if g.kind not in WINDOW]
    unit = gcd(hash_block(topology), topology.alignment or 0)
    for token in range(num_tokens // unit * unit):
        if not any(token_is_held(g.block_size, e, token, num_tokens) for g, e in cacheable):
            return token // unit * unit
    return num_tokens // unit * unit


def own_reach(
    topology: Topology, group: GroupSpec, entries: Collection[int], num_tokens: int
) -> int:
    if topology.partial_hits:
        return full_reach(group.block_size, entries, num_tokens)
    return full_reach(
        group.block_size, [e for e in entries if e % group.block_size == 0], num_tokens
    )
