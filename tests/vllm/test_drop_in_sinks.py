"""Blocks of sinks stay out of the pool; requests get the others as with full attention.

vLLM 0.32 cannot build its own manager for sink attention, so its manager of full attention, with a
pool that is smaller by the sinks, says what requests get.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest
from kvbraid.errors import UnsupportedError
from kvbraid.ids import BlockId

from tests.vllm.drop_in_pair import SIZES, Pair, config_of, full, tokens, window

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm import KvbraidCacheManager
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheSpec, SinkFullAttentionSpec
    from vllm.v1.request import Request

SETTINGS: Final[dict[str, Any]] = {
    "max_model_len": 4_096,
    "scheduler_block_size": 16,
    "hash_block_size": 16,
}
NUM_SINKS: Final = 3


def sink(num_tokens: int = NUM_SINKS * 16) -> KVCacheSpec:
    return SinkFullAttentionSpec(block_size=16, sink_len=num_tokens, **SIZES)


def manager(*specs: KVCacheSpec, num_blocks: int = 40) -> KvbraidCacheManager:
    config = config_of(*specs, num_blocks=num_blocks, retention=None)
    return KvbraidCacheManager(config, **SETTINGS, enable_kv_cache_events=True)


def prefill(of: Any, request: Request) -> tuple[int, list[list[int]]]:  # noqa: ANN401
    """Compute a whole prompt in a step: the hit, and the block table."""
    found, hit, _ = of.get_computed_blocks(request)
    allocated = of.allocate_slots(
        request,
        request.num_tokens - hit,
        num_new_computed_tokens=hit,
        new_computed_blocks=found,
    )
    assert allocated is not None
    return hit, [list(ids) for ids in of.get_block_ids(request.request_id)]


def told(of: Any) -> list[tuple[str, object]]:  # noqa: ANN401
    """What events say, except for the kind of the group."""
    return [(type(e).__name__, getattr(e, "block_hashes", None)) for e in of.take_events()]


def shifted(tables: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ids of the same blocks beside sinks; the null block stays what it is."""
    return [[block and block + NUM_SINKS for block in table] for table in tables]


@pytest.mark.parametrize("others", [(), (window(40),)], ids=["alone", "with a window"])
def test_requests_get_what_they_would_in_a_pool_without_the_blocks_of_sinks(
    others: tuple[KVCacheSpec, ...],
) -> None:
    config = config_of(full(), *others, num_blocks=60, retention=None)
    pair = Pair(config, alignment=16, unit=16)
    stock, ours = pair.theirs, manager(sink(), *others, num_blocks=60 + NUM_SINKS)
    documents = [tokens(seed, 200) for seed in range(3)]
    num_hits = num_events = 0
    for turn in range(40):
        prompt = documents[turn * 7 % 3][: 48 + turn * 11 % 130] + tokens(100 + turn, 20)
        request = pair.request(prompt)
        hit, table = prefill(stock, request)
        assert prefill(ours, request) == (hit, shifted(table))
        for each in (stock, ours):
            each.free(request)
        events = told(stock)
        assert told(ours) == events
        num_hits, num_events = num_hits + (hit > 0), num_events + len(events)
        free = stock.block_pool.get_num_free_blocks()
        assert ours.block_pool.get_num_free_blocks() == free
    assert num_hits > 3
    assert num_events > 50


def test_a_reset_keeps_the_sinks_and_forgets_what_was_cached() -> None:
    pair = Pair(config_of(full(), num_blocks=40), alignment=16, unit=16)
    ours = manager(sink())
    request = pair.request(tokens(1, 100))
    prefill(ours, request)
    assert not ours.reset_prefix_cache()
    ours.free(request)
    assert ours.reset_prefix_cache()
    kept = [BlockId(number) for number in range(1, NUM_SINKS + 1)]
    infos = ours.cache.pool.describe(kept)
    assert [(info.num_references, info.block_hash) for info in infos] == [(1, None)] * NUM_SINKS
    hit, (table,) = prefill(ours, pair.request(tokens(1, 100)))
    assert hit == 0
    assert min(table) > NUM_SINKS
    ours.cache.debug.check_integrity(kept)


def test_sinks_take_whole_blocks_and_leave_some_to_requests() -> None:
    with pytest.raises(UnsupportedError, match="24 sink tokens; they fill whole blocks of 16"):
        manager(sink(24))
    with pytest.raises(UnsupportedError, match="sinks take 3 of 4 blocks"):
        manager(sink(), num_blocks=4)
    manager(sink(), num_blocks=5)


def test_vllm_cannot_build_its_own_manager_for_sinks() -> None:
    """As soon as it can, the two are to be compared."""
    with pytest.raises(TypeError, match="needs_kv_cache_zeroing"):
        KVCacheManager(config_of(sink(), num_blocks=40), **SETTINGS)
