"""What a request can reuse of a cache and its tiers, by brute force over lengths and places.

A tier is what its index finds: group and hash to slots, oldest first. The boundary is the longest
that the rule, or that without hits inside blocks, accepts if all held what any holds. The load
begins at the longest boundary, at most the hit of the cache alone, whose hit has all that is
needed before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvbraid.cache import Fill, Match
from kvbraid.ids import BlockId
from kvbraid.spec import SpecKind

from tests.reference import resume
from tests.reference.cache_findable import FindableModel
from tests.reference.cache_groups import Group
from tests.reference.cache_memory import Request
from tests.reference.cache_pool import Key

Slots: TypeAlias = Mapping[Key, Sequence[int]]


class Over(NamedTuple):
    """The fields of `kvbraid.cache.TierMatch`, with a list of fills."""

    match: Match
    num_pool_tokens: int
    num_tokens: int
    fills: list[Fill]


def match_over(
    model: FindableModel, request: int, tiers: Sequence[Slots], *, whole_blocks: bool = False
) -> Over:
    known, replay = model.memory.requests[request], model.config.topology.replay_tokens
    sources: list[Slots] = [model.memory.pool.copies, *tiers]
    hit = model.hit_of(known)
    end = resume_over(model, known, sources, model.alignment if whole_blocks else 1)
    if end <= hit.num_tokens:
        return Over(hit, hit.num_tokens, hit.num_tokens, [])
    starts = [s for s in range(1, hit.num_tokens + 1) if (s + replay) % model.alignment == 0]
    start = max((s for s in starts if not lacks(model, known, s, end)), default=0)
    fills = [
        fill
        for group in model.shared_groups()
        for place in loaded_places(group, start, end)
        for fill in first_source(model, known, (group, place), end, sources)
    ]
    return Over(Match(start, hit.junction), hit.num_tokens, end, fills)


def resume_over(
    model: FindableModel, request: Request, sources: Sequence[Slots], multiple_of: int
) -> int:
    """The rule, of one cache with everything."""
    if not model.shared_groups():
        return 0
    ends = [((n + 1) * model.hash_block, digest) for n, digest in enumerate(request.hashes)]
    held = [
        frozenset(end for end, digest in ends if any((g, digest) in each for each in sources))
        for g in range(model.num_groups)
    ]
    topology, num_tokens = model.config.topology, len(request.tokens)
    return resume.resume(topology, num_tokens, held, multiple_of=multiple_of)


def lacks(model: FindableModel, request: Request, start: int, end: int) -> bool:
    """Whether a load from `start` on comes too late for something that is needed at `end`."""
    hits = model.hits_of(request, start)
    return any(
        not blocks[place]
        for group, blocks in zip(model.memory.groups, hits, strict=True)
        for place in resume.needed_blocks(group.spec, end)
        if place < len(blocks)
    )


def loaded_places(group: Group, start: int, end: int) -> list[int]:
    """Where a table gets blocks that are not of the hit: for what is read, and for tokens that
    are kept before a window."""
    size = group.spec.block_size
    first = resume.first_needed(group.spec, end) - group.options.extra_retained_tokens
    if group.spec.kind is SpecKind.MAMBA:
        first = end - 1
    places = {token // size for token in range(max(0, first), end)}
    return sorted(place for place in places if place * size >= start)


def first_source(
    model: FindableModel,
    request: Request,
    at: tuple[Group, int],
    end: int,
    sources: Sequence[Slots],
) -> Iterable[Fill]:
    """The block of a place in the first source that has one, if any has."""
    (group, place), unit = at, model.hash_block
    whole = (place + 1) * group.spec.block_size
    # An entry inside a block has all that is needed if it reaches the boundary; a state is exact.
    is_exact = group.spec.kind is SpecKind.MAMBA or whole <= end
    ends = [min(whole, end)] if is_exact else range(whole, end - 1, -1)
    hashed = [e for e in ends if e % unit == 0 and e <= len(request.hashes) * unit]
    keys = [(group.index, request.hashes[e // unit - 1]) for e in hashed]
    found = ((n, each[key][0]) for n, each in enumerate(sources) for key in keys if key in each)
    first = next(found, None)
    return [] if first is None else [Fill(group.index, place, first[0], BlockId(first[1]))]
