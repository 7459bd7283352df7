"""The native `CacheCore` and `encode_events` against the reference cache, a request at a time.

The same requests must hit the same, say the same and leave the same blocks to be evicted next.
What the reference has no rule for (several requests a step, places inside blocks, draft heads) is
compared elsewhere: full attention has the smallest blocks here.
"""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.cache.chunk import chunk_rules
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.events import Events
from kvbraid.cache.retention import Dense, Interval
from kvbraid.errors import TooLargeError
from kvbraid.events.model import Event
from kvbraid.hashing import EngineHash, ExtraKeys, block_hashes
from kvbraid.sim.scheduler import SequentialScheduler
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.reference.cache import ReferenceCache
from tests.reference.chains import chunked, full, mamba, window
from tests.unit.cache.caches import FreesAtOnce

SEED = "0"
SIZES = st.sampled_from([2, 4, 8])
ATTENTION = st.one_of(
    st.just(full(2)),
    st.builds(window, st.integers(2, 14), SIZES),
    st.builds(chunked, st.integers(1, 14), SIZES),
)
GROUPS = st.lists(ATTENTION | SIZES.map(mamba), min_size=1, max_size=4)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)  # Two tokens: prefixes are shared.
REQUESTS = st.lists(
    st.tuples(TOKENS, st.lists(st.integers(0, 1), max_size=6), st.sampled_from([None, "s"])),
    min_size=1,
    max_size=12,
)


class Engine:
    """The cache behind a scheduler; the events of each step, as structures."""

    def __init__(self, config: CacheConfig, max_step_tokens: int) -> None:
        self.cache = FreesAtOnce(config)
        self.batches: list[tuple[Event, ...]] = []
        self._scheduler = SequentialScheduler(
            self.cache,
            rules=chunk_rules(config.topology, max_chunk_tokens=max_step_tokens),
            max_step_tokens=max_step_tokens,
            publish=self._publish,
        )

    def _publish(self, events: Events) -> None:
        self.batches.append(events.structs())

    def run(
        self, prompt: Sequence[int], outputs: Sequence[int], salt: str | None
    ) -> tuple[int | None, tuple[Event, ...]]:
        """The hit, None if it did not fit, and all events."""
        self.batches.clear()
        try:
            hit: int | None = self._scheduler.run(prompt, outputs, ExtraKeys(cache_salt=salt))
        except TooLargeError:
            hit = None
        return hit, tuple(event for batch in self.batches for event in batch)


def run_reference(
    cache: ReferenceCache, prompt: Sequence[int], outputs: Sequence[int], salt: str | None
) -> tuple[int | None, tuple[Event, ...]]:
    try:
        run = cache.run(prompt, outputs, salt=salt)
    except TooLargeError:
        return None, cache.take_events()
    return run.hit, tuple(event for batch in run.batches for event in batch)


@settings(max_examples=200)
@given(
    GROUPS,
    st.integers(20, 60),
    st.sampled_from([None, 0, 3]),
    st.integers(1, 30),
    REQUESTS,
)
def test_the_same_requests_hit_the_same_and_say_the_same(
    groups: list[GroupSpec],
    num_blocks: int,
    interval: int | None,
    max_step_tokens: int,
    requests: list[tuple[list[int], list[int], str | None]],
) -> None:
    sizes = [group.block_size for group in groups]
    is_sparse = any(group.window or group.kind is SpecKind.MAMBA for group in groups)
    retention = None if interval is None else interval * is_sparse * math.lcm(*sizes)
    topology = Topology(
        groups=tuple(groups),
        dialect=EngineDialect.PURE,
        hash_algo="sha256",
        hash_seed=SEED,
    )
    engine_hash = EngineHash(seed=SEED, block_size=math.gcd(*sizes))
    reference = ReferenceCache(
        topology,
        num_blocks,
        chain=lambda tokens, salt: block_hashes(tokens, engine_hash, ExtraKeys(cache_salt=salt)),
        retention=retention,
        max_step_tokens=max_step_tokens,
    )
    engine = Engine(
        CacheConfig(
            topology=topology,
            num_blocks=num_blocks,
            events=True,
            retention=Dense() if retention is None else Interval(retention),
        ),
        max_step_tokens,
    )
    for prompt, outputs, salt in requests:
        expected = run_reference(reference, prompt, outputs, salt)
        assert engine.run(prompt, outputs, salt) == expected
        engine.cache.debug.check_integrity()
        assert engine.cache.debug.free_queue() == list(reference.pool.free)
