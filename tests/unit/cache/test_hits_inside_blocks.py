"""Hits that end inside a block: which of several blocks with the same tokens a request takes."""

from dataclasses import replace

import pytest
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.manager import CacheManager
from kvbraid.cache.retention import Interval
from kvbraid.cache.step import NO_MATCH, Need
from kvbraid.hashing import EngineHash, block_hashes
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

FULL, STATE = SpecKind.FULL_ATTENTION, SpecKind.MAMBA
TOPOLOGY = Topology(
    groups=(GroupSpec(kind=FULL, block_size=64), GroupSpec(kind=STATE, block_size=64)),
    hash_block_size=16,
    partial_hits=True,
)

ONE_GROUP = Topology(
    groups=(GroupSpec(kind=FULL, block_size=64),), hash_block_size=16, partial_hits=True
)


def test_a_hit_takes_the_block_that_is_known_where_it_ends_not_an_older_one_known_beyond() -> None:
    cache = CacheManager(
        CacheConfig(
            topology=TOPOLOGY,
            num_blocks=50,
            dialect=EngineDialect.VLLM,
            hash_seed="0",
            retention=Interval(0),
        )
    )
    scheduler = OneByOne(cache, max_step_tokens=1_000)
    prompt = list(range(64))
    assert scheduler.run([*prompt, 1, 2]) == 0  # Its first block is known at 64 only.
    assert scheduler.run(prompt) == 0  # One more copy, known at 48 and at 64.
    hashes = block_hashes(prompt, EngineHash(seed="0"))
    (inside,) = cache.debug.cached()[0, hashes[2]]
    assert len(cache.debug.cached()[0, hashes[3]]) == 2

    cache.start_step()
    request = cache.add(prompt)
    match = cache.match(request)
    assert match.num_tokens == 48
    need = Need(request=request, num_new_tokens=16, num_hit_tokens=48)
    assert cache.allocate([need]).num_fit == 1
    copied = {source for source, _ in cache.take_work().copies}
    assert inside in copied


def test_a_request_waits_for_the_block_inside_which_its_hit_ends_until_that_is_written() -> None:
    """Copies are made before a step runs: a copy of what the step writes would be garbage."""
    cache = CacheManager(CacheConfig(topology=ONE_GROUP, num_blocks=20))
    cache.start_step()
    first = cache.add(range(50))
    assert cache.allocate([Need(request=first, num_new_tokens=50)]).num_fit == 1
    request = cache.add([*range(48), 7, 7])
    need = Need(request=request, num_new_tokens=2, num_hit_tokens=cache.match(request).num_tokens)
    assert need.num_hit_tokens == 48
    assert cache.blocks_needed(need) > cache.pool.num_blocks
    assert cache.allocate([need]).num_fit == 0
    cache.debug.check_integrity()
    cache.start_step()
    cache.extend(first, [50])
    more = Need(
        request=first, num_new_tokens=1
    )  # This step writes there too, but after 48 tokens.
    assert cache.allocate([more, need]).num_fit == 2
    assert [copy[0] for copy in cache.take_work().copies] == cache.blocks(first)[0]


@pytest.mark.parametrize(("partial_junctions", "third_hit"), [(True, 20), (False, 16)])
def test_the_third_request_resumes_where_the_second_branched_off_inside_a_block(
    partial_junctions: bool,
    third_hit: int,
) -> None:
    config = CacheConfig(
        topology=replace(
            TOPOLOGY,
            groups=(GroupSpec(kind=FULL, block_size=4), GroupSpec(kind=STATE, block_size=16)),
            alignment=16,
            hash_block_size=4,
        ),
        num_blocks=99,
        partial_junctions=partial_junctions,
    )
    cache = CacheManager(config)
    shared = list(range(20))
    hits = [run(cache, [*shared, *range(100 * own, 100 * own + 40)]) for own in (1, 2, 3)]
    assert hits == [0, 0, third_hit]  # The first left no state before its end.


def run(cache: CacheManager, prompt: list[int]) -> int:
    """Compute a prompt in the steps that the cache plans; return how much was reused."""
    request = cache.add(prompt)
    match = cache.match(request)
    done, hit = match.num_tokens, match.num_tokens
    while done < len(prompt):
        chunk = cache.plan_chunk(request, 999, match=match if done == hit else NO_MATCH)
        cache.start_step()
        need = Need(
            request=request, num_new_tokens=chunk, num_hit_tokens=hit, junction=match.junction
        )
        assert cache.allocate([need]).num_fit == 1
        cache.debug.check_integrity()
        done, hit = done + chunk, 0
    cache.take_work()
    cache.release([request])
    return match.num_tokens
