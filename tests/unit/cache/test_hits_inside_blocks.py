"""Hits that end inside a block: which of several blocks with the same tokens a request takes."""

from kvbraid.cache.chunk import chunk_rules
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.events import Events
from kvbraid.cache.manager import CacheManager
from kvbraid.cache.retention import Interval
from kvbraid.cache.step import Need
from kvbraid.hashing import EngineHash, block_hashes
from kvbraid.sim.scheduler import SequentialScheduler
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL, STATE = SpecKind.FULL_ATTENTION, SpecKind.MAMBA
TOPOLOGY = Topology(
    groups=(GroupSpec(kind=FULL, block_size=64), GroupSpec(kind=STATE, block_size=64)),
    hash_block_size=16,
    partial_hits=True,
    hash_algo="sha256",
    hash_seed="0",
)


def test_a_hit_takes_the_block_that_is_known_where_it_ends_not_an_older_one_known_beyond() -> None:
    cache = CacheManager(CacheConfig(topology=TOPOLOGY, num_blocks=50, retention=Interval(0)))
    scheduler = SequentialScheduler[Events](
        cache, rules=chunk_rules(TOPOLOGY), max_step_tokens=1_000, publish=lambda _: None
    )
    prompt = list(range(64))
    assert scheduler.run([*prompt, 1, 2]) == 0  # Its first block is known at 64 only.
    assert scheduler.run(prompt) == 0  # One more copy, known at 48 and at 64.
    hashes = block_hashes(prompt, EngineHash(seed="0"))
    (inside,) = cache.cached()[0, hashes[2]]
    assert len(cache.cached()[0, hashes[3]]) == 2

    cache.start_step()
    request = cache.add(prompt)
    match = cache.match(request)
    assert match.num_tokens == 48
    need = Need(request=request, num_new_tokens=16, num_hit_tokens=48)
    assert cache.allocate([need]).num_fit == 1
    copied = {source for source, _ in cache.take_copies()}
    assert inside in copied
