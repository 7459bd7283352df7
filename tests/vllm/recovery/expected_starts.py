"""Where a request should compute again from, by the rule's brute force: every length is tried.

What a request holds is read from its tables entry by entry, before the failure is reported. The
code under test is not asked.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from kvbraid.ids import BlockId
from kvbraid.spec import SpecKind

from tests.reference import own_tables, resume
from tests.vllm.recovery.rebuilt_engine import RebuiltEngine


class Expected(NamedTuple):
    """What should happen; in tokens.

    Attributes:
        resume: The longest boundary over the request's own blocks.
        in_place: Whether it can go back without giving its blocks up.
        start: The first token that it computes again.
    """

    resume: int
    in_place: bool
    start: int


def expected(
    engine: RebuiltEngine,
    request: Any,  # noqa: ANN401 - vLLM's own type.
    bad: Collection[int],
    *,
    rewritten: Collection[int] = (),
) -> Expected:
    """Compare with brute force after a load has begun, before any part of it is reported.

    Args:
        engine: The engine.
        request: A request with a load under way, or with a hit.
        bad: All blocks with garbage in them.
        rewritten: Those of them that another request writes again.
    """
    cache, topology = engine.cache, engine.topology
    number = number_of(engine, request)
    plain = own_tables.without_draft_heads(topology)
    first = first_computed(engine, request)
    unusable = {BlockId(block) for block in set(bad) - set(rewritten)}
    held = own_tables.entries(cache, number, unusable, first)
    longest = resume.resume(plain, min(request.num_tokens, first + 1), held)
    in_place = can_go_back(engine, number, longest, rewritten)
    if in_place:
        return Expected(longest, in_place, longest)
    found = findable(engine, request, bad)
    load = engine.loads.get(request.request_id)
    if load and load.is_async:  # What arrived well becomes findable when the load is given up.
        found = [
            ends | {end for end in own if end <= longest}
            for ends, own in zip(found, held, strict=True)
        ]
    again = resume.resume(topology, request.num_tokens, found)
    return Expected(longest, in_place, again)


def expected_after_all(engine: RebuiltEngine, request: Any) -> int:  # noqa: ANN401 - vLLM's own type.
    """Return where a request should start of which a load under way brings every token."""
    number, last = number_of(engine, request), int(request.num_tokens) - 1
    if all(
        spec.kind is not SpecKind.MAMBA
        and all(table[t // spec.block_size] for t in range(resume.first_needed(spec, last), last))
        for spec, table in zip(engine.groups, engine.cache.blocks(number), strict=True)
    ):
        return last
    loaded = own_tables.entries(engine.cache, number, set(), request.num_tokens)
    return resume.resume(engine.topology, request.num_tokens, loaded)


def number_of(engine: RebuiltEngine, request: Any) -> int:  # noqa: ANN401 - vLLM's own type.
    number: int = engine.scheduler.kv_cache_manager._requests.known(request.request_id)
    return number


def first_computed(engine: RebuiltEngine, request: Any) -> int:  # noqa: ANN401 - vLLM's own type.
    """Return the first token that is neither loaded nor hit."""
    load = engine.loads.get(request.request_id)
    return load.end if load else engine.parts_of(request)[-1].start


def can_go_back(
    engine: RebuiltEngine, number: int, longest: int, untouchable: Collection[int]
) -> bool:
    """Whether every block that is read or written from there on is in the tables."""
    for spec, table in zip(engine.groups, engine.cache.blocks(number), strict=True):
        if spec.kind is SpecKind.MAMBA:
            return False
        if 0 in table[resume.first_needed(spec, longest) // spec.block_size :]:
            return False
        if set(table[longest // spec.block_size :]) & set(untouchable):
            return False
    return True


def findable(
    engine: RebuiltEngine,
    request: Any,  # noqa: ANN401 - vLLM's own type.
    bad: Collection[int],
) -> list[set[int]]:
    """Return, by group, where something ends that a look-up finds and that is good."""
    cached = engine.cache.debug.cached()
    unit = resume.hash_block(engine.topology)
    return [
        {
            (index + 1) * unit
            for index, digest in enumerate(request.block_hashes)
            if set(cached.get((group, digest), ())) - set(bad)
        }
        for group in range(len(engine.groups))
    ]


def written_since(engine: RebuiltEngine, request: Any, token: int) -> set[int]:  # noqa: ANN401 - vLLM's own type.
    """Return the blocks with tokens of a request from a token on."""
    tables = engine.cache.blocks(number_of(engine, request))
    return {
        block
        for spec, table in zip(engine.groups, tables, strict=True)
        for block in table[token // spec.block_size :]
        if block
    }
