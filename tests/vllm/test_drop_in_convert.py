"""vLLM's description of its cache is converted to ours; what ours cannot do is refused by name."""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.cache import CacheManager, Dense, GroupOptions, Interval
from kvbraid.errors import InvalidValueError, UnsupportedError
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind

from tests.vllm.drop_in_pair import SIZES, chunked, config_of, full, states, window

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm import EngineSettings, KvbraidCacheManager, cache_config
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        CircularBufferSpec,
        CrossAttentionSpec,
        KVCacheGroupRole,
        MLAAttentionSpec,
        RSWASpec,
        SinkFullAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )

SETTINGS = EngineSettings(max_model_len=1_024, scheduler_block_size=64, hash_block_size=16)


def topology_of(*specs: Any, settings: EngineSettings = SETTINGS) -> tuple[GroupSpec, ...]:  # noqa: ANN401
    config = cache_config(config_of(*specs, num_blocks=10), settings)
    CacheManager(config)  # The core takes it.
    return config.topology.groups


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (full(), {"kind": SpecKind.FULL_ATTENTION}),
        (MLAAttentionSpec(block_size=16, **SIZES), {"kind": SpecKind.MLA_ATTENTION}),
        (
            SinkFullAttentionSpec(block_size=16, sink_len=32, **SIZES),
            {"kind": SpecKind.SINK_FULL_ATTENTION},
        ),
        (window(40), {"kind": SpecKind.SLIDING_WINDOW, "window": 40}),
        (
            SlidingWindowMLASpec(block_size=16, sliding_window=40, **SIZES),
            {"kind": SpecKind.SLIDING_WINDOW_MLA, "window": 40},
        ),
        (chunked(64), {"kind": SpecKind.CHUNKED_LOCAL_ATTENTION, "chunk": 64}),
        (states(), {"kind": SpecKind.MAMBA}),
        (
            CircularBufferSpec(block_size=16, **SIZES),
            {"kind": SpecKind.FULL_ATTENTION, "prefix_cacheable": False},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_group_is_taken_over(spec: Any, expected: dict[str, Any]) -> None:  # noqa: ANN401
    first, second = topology_of(spec, full(64))
    assert first == GroupSpec(block_size=16, **expected)
    assert second == GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=64)


def test_specs_that_differ_in_heads_or_format_alone_are_told_apart() -> None:
    wide = replace(full(64), num_kv_heads=2 * full(64).num_kv_heads)
    groups = topology_of(full(64), wide, full(64), window(40))
    assert [group.variant for group in groups] == [0, 1, 0, 0]


def test_sizes_retention_and_limits_are_taken_over() -> None:
    settings = replace(
        SETTINGS, max_in_flight_tokens=256, events=True, watermark=0.1, num_prefill_lookahead=3
    )
    for retention, expected in ((None, Dense()), (0, Interval(0)), (128, Interval(128))):
        config = cache_config(
            config_of(window(40), full(64), num_blocks=99, retention=retention), settings
        )
        assert config.retention == expected
        assert config.topology.alignment == 64
        assert config.topology.hash_block_size == 16
        assert config.dialect is EngineDialect.VLLM
        assert (config.num_blocks, config.max_model_len) == (99, 1_024)
        assert (config.max_in_flight_tokens, config.watermark) == (256, 0.1)
        assert config.num_reprefillable_tokens == 2
        assert config.events
        CacheManager(config)


def test_without_a_limit_a_whole_request_may_be_in_flight() -> None:
    config = cache_config(config_of(full(), num_blocks=9), SETTINGS)
    assert config.max_in_flight_tokens == 1_024


def test_hits_end_inside_blocks_of_states_only_where_every_group_can() -> None:
    def is_partial(*specs: Any) -> bool:  # noqa: ANN401 - vLLM's own type.
        config = cache_config(config_of(*specs, num_blocks=9), SETTINGS)
        return bool(config.topology.partial_hits)

    assert is_partial(states(64), full(64))
    assert is_partial(states(64), window(40, 16), full(64))
    assert not is_partial(states(64), window(40, 32), full(64))
    assert not is_partial(states(16), full(16))
    assert not is_partial(states(64))


def test_a_drafter_that_names_no_group_has_all_of_them() -> None:
    settings = replace(SETTINGS, use_eagle=True)
    assert [g.eagle for g in topology_of(window(40), full(), settings=settings)] == [True, True]
    config = config_of(window(40), full(), num_blocks=9)
    config.kv_cache_groups[1].is_eagle_group = True
    groups = cache_config(config, settings).topology.groups
    assert [group.eagle for group in groups] == [False, True]


def test_options_of_groups_are_taken_over() -> None:
    specs = (
        states(num_speculative_blocks=2),
        SlidingWindowSpec(block_size=16, sliding_window=40, extra_retained_tokens=5, **SIZES),
        CircularBufferSpec(block_size=16, **SIZES),
    )
    config = cache_config(config_of(*specs, num_blocks=9), SETTINGS)
    assert config.group_options == (
        GroupOptions(num_speculative_blocks=2),  # A state is not zeroed, what lies beside it is.
        GroupOptions(extra_retained_tokens=5, needs_zeroing=True),
        GroupOptions(is_ring=True),
    )


def test_states_saved_inside_chunks_are_taken_over() -> None:
    saves: dict[str, Any] = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 8}
    specs = (states(**saves), states(mode="none", **saves), states(prefill_checkpoint_alignment=8))
    settings = replace(SETTINGS, caching=False)
    config = cache_config(config_of(*specs, num_blocks=9), settings)
    assert [o.checkpoint_alignment for o in config.group_options] == [8, None, None]


def test_without_reuse_no_group_is_cached_and_sizes_need_not_fit() -> None:
    settings = replace(SETTINGS, caching=False, scheduler_block_size=1_024 * 17)
    specs = (states(1_024, "none"), full(17), CrossAttentionSpec(block_size=16, **SIZES))
    assert not any(group.prefix_cacheable for group in topology_of(*specs, settings=settings))


def test_a_model_without_a_cache_has_an_empty_one() -> None:
    manager = KvbraidCacheManager(config_of(num_blocks=1), 64, 16, 16, enable_caching=False)
    assert manager.usage == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RSWASpec(block_size=16, rswa_window=32, **SIZES), "group 0 is a RSWASpec"),
        (states(mode="none"), "mamba_cache_mode = 'none'.*--no-enable-prefix-caching"),
        (
            SlidingWindowMLASpec(block_size=16, sliding_window=8, bounded_replay=True, **SIZES),
            "bounded replay",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_group_that_ours_cannot_have_is_refused(spec: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(UnsupportedError, match=message):
        topology_of(spec, full())


def test_host_pools_are_refused() -> None:
    config = config_of(full(), num_blocks=9)
    config.kv_cache_groups[0].role = KVCacheGroupRole.HISPARSE_SOURCE
    with pytest.raises(UnsupportedError, match="HiSparse"):
        cache_config(config, SETTINGS)


@pytest.mark.parametrize(
    ("use_eagle", "num_prefill_lookahead", "block_size", "are_kept"),
    [
        (True, 1, 64, True),
        (False, 0, 64, False),
        (True, 3, 64, False),
        (True, 1, 16, False),  # No hit ends inside a block.
    ],
)
def test_states_are_kept_at_junctions_inside_blocks_where_vllm_does(
    *, use_eagle: bool, num_prefill_lookahead: int, block_size: int, are_kept: bool
) -> None:
    settings: dict[str, Any] = {
        "max_model_len": 4096,
        "scheduler_block_size": block_size,
        "hash_block_size": 16,
        "use_eagle": use_eagle,
        "num_prefill_lookahead": num_prefill_lookahead,
    }
    asked = EngineSettings(**settings, mamba_shared_prefix_checkpoint=True)
    config = config_of(states(block_size), full(block_size), num_blocks=9)
    assert cache_config(config, asked).partial_junctions == are_kept
    assert not cache_config(config, EngineSettings(**settings)).partial_junctions
    stock = KVCacheManager(config, **settings, enable_mamba_shared_prefix_checkpoint=True)
    assert stock.mamba_shared_prefix_checkpoint == are_kept


def test_drafts_longer_than_a_block_are_refused() -> None:
    settings = replace(SETTINGS, use_eagle=True, num_prefill_lookahead=65)
    with pytest.raises(UnsupportedError, match="larger --block-size"):
        topology_of(full(), settings=settings)


def test_metrics_of_single_blocks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="--kv-cache-metrics"):
        KvbraidCacheManager(
            config_of(full(), num_blocks=9), 64, 16, 16, metrics_collector=object()
        )


def test_a_block_covers_its_tokens_on_all_ranks() -> None:
    settings = replace(SETTINGS, decode_context_parallel=2)
    specs = (full(), states(64), window(40, dcp_sharded=False))
    assert [g.block_size for g in topology_of(*specs, settings=settings)] == [32, 64, 16]
    config = cache_config(config_of(*specs, num_blocks=9), settings)
    assert [o.is_replicated for o in config.group_options] == [False, False, True]
    manager = KvbraidCacheManager(
        config_of(*specs, num_blocks=9), 1_024, 64, 16, dcp_world_size=2, pcp_world_size=1
    )
    assert [g.block_size for g in manager.coordinator.single_type_managers] == [32, 64, 16]


@pytest.mark.parametrize("spec", [window(40), chunked(64)], ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize("ranks", [{"dcp_world_size": 2}, {"pcp_world_size": 2}], ids=str)
def test_what_vllm_cannot_shard_is_refused(spec: Any, ranks: dict[str, Any]) -> None:  # noqa: ANN401
    with pytest.raises(InvalidValueError, match=r"group 1 .*context_parallel = 2 admits"):
        KvbraidCacheManager(config_of(full(), spec, num_blocks=9), 1_024, 16, 16, **ranks)
    with pytest.raises(AssertionError, match="CP"):
        KVCacheManager(config_of(full(), spec, num_blocks=9), 1_024, 16, 16, **ranks)


def test_states_are_refused_where_a_prompt_is_spread() -> None:
    with pytest.raises(InvalidValueError, match=r"group 0 .*prefill_context_parallel = 2 admits"):
        KvbraidCacheManager(
            config_of(states(), full(), num_blocks=9), 1_024, 16, 16, pcp_world_size=2
        )
    with pytest.raises(AssertionError, match="PCP"):
        KVCacheManager(config_of(states(), full(), num_blocks=9), 1_024, 16, 16, pcp_world_size=2)
