"""The cache manager against its model, whole lives of requests one after the other.

One scheduler drives both: the same requests must have the same hits and events, and leave the same
blocks to be evicted next. The native side is `CacheCore`, and `encode_events` for the events.
"""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.cache import CacheManager, Dense, Interval
from kvbraid.errors import TooLargeError
from kvbraid.hashing import ExtraKeys
from kvbraid.spec import GroupSpec, SpecKind

from tests.contract.whole_lives import Engine
from tests.reference.cache_model import CacheModel
from tests.unit.cache.caches import chunked, config, full, mamba, window

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


def hit_of(engine: Engine, prompt: list[int], outputs: list[int], salt: str | None) -> int | None:
    """The hit, None if the request did not fit."""
    try:
        return engine.run(prompt, outputs, ExtraKeys(cache_salt=salt))
    except TooLargeError:
        return None


@settings(max_examples=200)
@given(
    groups=GROUPS,
    num_blocks=st.integers(20, 60),
    interval=st.sampled_from([None, 0, 3]),
    max_step_tokens=st.integers(1, 30),
    requests=REQUESTS,
)
def test_the_same_requests_hit_the_same_and_say_the_same(
    groups: list[GroupSpec],
    num_blocks: int,
    interval: int | None,
    max_step_tokens: int,
    requests: list[tuple[list[int], list[int], str | None]],
) -> None:
    is_sparse = any(group.window or group.kind is SpecKind.MAMBA for group in groups)
    unit = math.lcm(*(group.block_size for group in groups)) * is_sparse
    retention = Dense() if interval is None else Interval(interval * unit)
    cache = config(*groups, num_blocks=num_blocks, retention=retention)
    native = Engine(CacheManager(cache), cache, max_step_tokens)
    model = Engine(CacheModel(cache), cache, max_step_tokens)
    for request in requests:
        assert hit_of(native, *request) == hit_of(model, *request)
        assert native.said == model.said
        assert native.cache.debug.free_queue() == model.cache.debug.free_queue()
        assert native.cache.debug.cached() == model.cache.debug.cached()
