"""vLLM's description of its cache -> the configuration of ours.

A pure function of what the scheduler passes to a cache manager. Whatever our cache does not do in
the same way as vLLM is refused here by name, before an engine starts; nothing is approximated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm.v1.core.kv_cache_utils import (
    partial_hash_hits_enabled,
    resolve_dcp_kv_block_size,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupRole,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    get_kv_cache_spec_kind,
)
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvbraid.cache import ByValue, CacheConfig, Dense, GroupOptions, Interval, Retention
from kvbraid.errors import InvalidValueError, UnsupportedError
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology, told_apart

# Exact types: a class derived from one of these may behave in its own way (R-SWA does).
_SUPPORTED: Final = frozenset(
    {
        FullAttentionSpec,
        MLAAttentionSpec,
        SinkFullAttentionSpec,
        HiddenStateCacheSpec,
        SlidingWindowSpec,
        SlidingWindowMLASpec,
        ChunkedLocalAttentionSpec,
        MambaSpec,
        CrossAttentionSpec,
        CircularBufferSpec,
    }
)

_STOCK: Final = "start vLLM without --scheduler-cls"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a vLLM scheduler knows about its cache in addition to the `KVCacheConfig`.

    `by_value` replaces the engine's retention; its interval may be any number of tokens.
    `findable`: a connector takes the list of what became findable, in every step.
    """

    max_model_len: int
    scheduler_block_size: int
    hash_block_size: int
    max_in_flight_tokens: int | None = None
    caching: bool = True
    use_eagle: bool = False
    num_prefill_lookahead: int = 0
    events: bool = False
    watermark: float = 0.0
    mamba_shared_prefix_checkpoint: bool = False
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1
    by_value: ByValue | None = None
    findable: bool = False


def cache_config(config: KVCacheConfig, settings: EngineSettings) -> CacheConfig:
    """Return the configuration under which our cache does what vLLM's manager would do.

    Raises:
        UnsupportedError: The message names the group or the setting, and the remedy.
        InvalidValueError: The groups cannot have the retention interval.
    """
    groups = config.kv_cache_groups
    for index, group in enumerate(groups):
        _check_group(index, group, caching=settings.caching)
    eagle = _eagle_groups(groups, use_eagle=settings.use_eagle)
    partial_hits = partial_hits_of(config, settings)
    num_reprefillable_tokens = max(0, settings.num_prefill_lookahead - 1)
    _check_settings(settings, has_eagle=any(eagle))
    return CacheConfig(
        topology=Topology(
            groups=told_apart(
                (
                    _group_spec(group.kv_cache_spec, settings, eagle=is_eagle)
                    for group, is_eagle in zip(groups, eagle, strict=True)
                ),
                by=[group.kv_cache_spec for group in groups],
            ),
            # Without reuse a state's block is as long as a request; nothing has to align to it.
            alignment=settings.scheduler_block_size if settings.caching else None,
            hash_block_size=settings.hash_block_size if settings.caching else None,
            partial_hits=partial_hits,
        ),
        dialect=EngineDialect.VLLM,
        # A model without any cache has one block, which is the null block.
        num_blocks=config.num_blocks if groups else max(config.num_blocks, 2),
        group_options=tuple(_options(group.kv_cache_spec, config) for group in groups),
        caching=settings.caching and bool(config.kv_cache_groups),
        events=settings.events,
        findable=settings.findable,
        retention=_retention(config, settings),
        max_model_len=settings.max_model_len,
        max_in_flight_tokens=(
            settings.max_model_len
            if settings.max_in_flight_tokens is None
            else settings.max_in_flight_tokens
        ),
        watermark=settings.watermark,
        num_reprefillable_tokens=num_reprefillable_tokens,
        partial_junctions=settings.mamba_shared_prefix_checkpoint
        and any(eagle)
        and partial_hits
        and not num_reprefillable_tokens,
        decode_context_parallel=settings.decode_context_parallel,
        prefill_context_parallel=settings.prefill_context_parallel,
    )


def partial_hits_of(config: KVCacheConfig, settings: EngineSettings) -> bool:
    """Return whether a hit may end inside a block: vLLM's own predicate decides."""
    if not settings.caching or len(config.kv_cache_groups) < 2:
        return False
    managers = [
        KVCacheSpecRegistry.get_manager_class(group.kv_cache_spec, group.role)
        for group in config.kv_cache_groups
    ]
    return bool(
        partial_hash_hits_enabled(
            config.kv_cache_groups,
            settings.hash_block_size,
            settings.decode_context_parallel,
            managers,
        )
    )


def _eagle_groups(groups: Sequence[KVCacheGroupSpec], *, use_eagle: bool) -> list[bool]:
    """Return which groups need a unit after a boundary: the flagged ones, or all if none is."""
    flags = [bool(group.is_eagle_group) for group in groups]
    if use_eagle and not any(flags):
        return [True] * len(flags)
    return flags


def _retention(config: KVCacheConfig, settings: EngineSettings) -> Retention:
    """Return the retention, or refuse it; the message uses the option's name in vLLM."""
    scheduler_block_size = settings.scheduler_block_size
    if settings.by_value is not None:
        return settings.by_value.aligned(scheduler_block_size)
    interval = config.prefix_cache_retention_interval
    if interval is None:
        return Dense()
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    is_sparse = any(isinstance(spec, SlidingWindowSpec | MambaSpec) for spec in specs)
    if interval > 0 and not is_sparse:
        raise InvalidValueError(
            f"prefix_cache_retention_interval is {interval}, but there is no sliding-window or "
            "Mamba group whose blocks it could leave out; set it to 0"
        )
    if interval < 0 or (is_sparse and interval % scheduler_block_size):
        raise InvalidValueError(
            f"prefix_cache_retention_interval is {interval}; expected a non-negative multiple of "
            f"scheduler_block_size, which is {scheduler_block_size}"
        )
    return Interval(interval)


def _group_spec(spec: KVCacheSpec, settings: EngineSettings, *, eagle: bool) -> GroupSpec:
    is_chunked = isinstance(spec, ChunkedLocalAttentionSpec)
    return GroupSpec(
        kind=_kind(spec),
        block_size=resolve_dcp_kv_block_size(spec, settings.decode_context_parallel),
        window=spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
        chunk=spec.attention_chunk_size if is_chunked else None,
        eagle=eagle,
        prefix_cacheable=settings.caching and spec.prefix_cacheable,
    )


def _kind(spec: KVCacheSpec) -> SpecKind:
    kind = SpecKind(get_kv_cache_spec_kind(spec).value)
    # A ring has no kind of its own in vLLM's table; our cache never looks at the kind of a ring.
    return SpecKind.FULL_ATTENTION if isinstance(spec, CircularBufferSpec) else kind


def _options(spec: KVCacheSpec, config: KVCacheConfig) -> GroupOptions:
    is_ring = isinstance(spec, CircularBufferSpec)
    is_window = isinstance(spec, SlidingWindowSpec)
    return GroupOptions(
        num_speculative_blocks=spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0,
        extra_retained_tokens=spec.extra_retained_tokens if is_window else 0,
        needs_zeroing=bool(config.needs_kv_cache_zeroing)
        and isinstance(spec, AttentionSpec)
        and not is_ring,
        is_ring=is_ring,
        checkpoint_alignment=_checkpoint_alignment(spec),
        is_replicated=isinstance(spec, AttentionSpec) and not spec.dcp_sharded,
    )


def _checkpoint_alignment(spec: KVCacheSpec) -> int | None:
    """Return the multiple at which the backend can save a state inside a chunk, or None."""
    if not isinstance(spec, MambaSpec) or spec.mamba_cache_mode != "align":
        return None
    alignment: int | None = spec.prefill_checkpoint_alignment
    return alignment if spec.num_prefill_checkpoint_blocks > 0 else None


def _check_group(index: int, group: KVCacheGroupSpec, *, caching: bool) -> None:
    spec = group.kv_cache_spec
    name = type(spec).__name__
    if group.role != KVCacheGroupRole.DEFAULT or group.host_resident:
        raise UnsupportedError(
            f"KV cache group {index} ({name}) has the role {group.role.value}: HiSparse keeps "
            f"blocks in pools of its own, which kvbraid lacks; {_STOCK}, or leave HiSparse out"
        )
    if type(spec) not in _SUPPORTED:
        raise UnsupportedError(
            f"KV cache group {index} is a {name}; kvbraid supports "
            f"{', '.join(sorted(kind.__name__ for kind in _SUPPORTED))}: {_STOCK}"
        )
    if isinstance(spec, MambaSpec):
        _check_states(index, spec, caching=caching)
    if spec.prefix_replay_tokens > 0:
        raise UnsupportedError(
            f"KV cache group {index} ({name}) recomputes the last {spec.prefix_replay_tokens} "
            f"tokens of a hit (bounded replay), which kvbraid was not tested with; {_STOCK}"
        )


def _check_states(index: int, spec: MambaSpec, *, caching: bool) -> None:
    if caching and spec.mamba_cache_mode != "align":
        raise UnsupportedError(
            f"KV cache group {index} (MambaSpec) has mamba_cache_mode = {spec.mamba_cache_mode!r} "
            "with prefix caching; pass --mamba-cache-mode align, or --no-enable-prefix-caching"
        )


def _check_settings(settings: EngineSettings, *, has_eagle: bool) -> None:
    lookahead = settings.num_prefill_lookahead
    if settings.caching and has_eagle and settings.scheduler_block_size < lookahead:
        raise UnsupportedError(
            f"drafts of {lookahead} tokens and blocks of {settings.scheduler_block_size}: a hit "
            "must not cover the drafts' tokens; draft less, or pass a larger --block-size"
        )
