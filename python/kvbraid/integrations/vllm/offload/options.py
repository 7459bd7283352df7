"""What operators ask of offloading: keys of `kv_connector_extra_config`, read before the start.

Invariant: both sides read the same settings from the same configuration, and whatever is unknown
or contradicts itself is refused by name before an engine's memory is allocated.
"""

import os
from typing import Annotated, Final

from msgspec import Meta
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import DEFAULT_NONE_HASH_SEED

from kvbraid.errors import InvalidValueError, UnsupportedError
from kvbraid.integrations.vllm.recovery.options import KEY as RECOVERY
from kvbraid.integrations.vllm.recovery.rescheduling import RecoveringScheduler
from kvbraid.reading import Fields, read_into
from kvbraid.transfer.keys import Namespace

DISK: Final = "disk"
"""The name of the disk tier in jobs, records and metrics."""

_NumBytes = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_Duration = Annotated[float, Meta(gt=0, le=86_400)]


class OffloadSettings(Fields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of `kv_connector_extra_config`, beside those of recovery.

    Attributes:
        host_bytes: Bytes of host memory, of each rank.
        disk_directory: The directory of records; null: no disk.
        disk_bytes: The limit of all records in the directory, other engines' included.
        disk_threads: How many records each rank writes or reads at a time.
        disk_load_seconds: How long a record is waited for before its load has failed.
        disk_store_seconds: The same for writing one.
        disk_scan_seconds: How often the directory is searched for what other engines stored.
        lookup_seconds: How long a request waits for records before it starts with less.
        rest_seconds: How long a tier is left alone after three failures in a row.
    """

    host_bytes: _NumBytes
    disk_directory: Annotated[str, Meta(min_length=1)] | None = None
    disk_bytes: _NumBytes | None = None
    disk_threads: Annotated[int, Meta(ge=2, le=64)] = 4
    disk_load_seconds: _Duration = 5.0
    disk_store_seconds: _Duration = 30.0
    disk_scan_seconds: _Duration = 5.0
    lookup_seconds: _Duration = 2.0
    rest_seconds: _Duration = 10.0


def offload_settings(config: VllmConfig) -> OffloadSettings:
    """Return what is asked for.

    Raises:
        InvalidValueError: A key is unknown, has a wrong value, or contradicts another.
        UnsupportedError: Another scheduler than ours, or hashes that nobody else computes.
    """
    transfer = config.kv_transfer_config
    assert transfer is not None  # It names this connector.
    asked = {k: v for k, v in transfer.kv_connector_extra_config.items() if k != RECOVERY}
    settings = read_into(
        OffloadSettings,
        asked,
        InvalidValueError,
        prefix="kv_connector_extra_config: ",
        remedy='give at least {"host_bytes": bytes of host memory}',
    )
    if (settings.disk_directory is None) != (settings.disk_bytes is None):
        raise InvalidValueError(
            f"kv_connector_extra_config: disk_directory = {settings.disk_directory!r} and "
            f"disk_bytes = {settings.disk_bytes!r}; give both, or neither for no disk"
        )
    _check_scheduler(config)
    if not config.cache_config.enable_prefix_caching:
        what = "OffloadConnector without prefix caching: blocks are found by their hashes"
        raise UnsupportedError(f"{what}; leave out --no-enable-prefix-caching, or the connector")
    if settings.disk_directory is not None:
        _check_hashes(config)
    return settings


def namespace_of(config: VllmConfig, layout: str, rank: int) -> Namespace:
    """Return whose blocks a rank's are; `layout` is the fingerprint of its plan."""
    model, cache = config.model_config, config.cache_config
    return Namespace(
        layout=layout,
        model=model.model,
        revision=model.revision or "",
        cache_dtype=f"{cache.cache_dtype} {model.dtype} {model.quantization}",
        hash_algorithm=cache.prefix_caching_hash_algo,
        hash_seed=os.environ.get("PYTHONHASHSEED", DEFAULT_NONE_HASH_SEED),
        rank=rank,
        num_ranks=config.parallel_config.world_size,
    )


def _check_scheduler(config: VllmConfig) -> None:
    kind = config.scheduler_config.get_scheduler_cls()
    if not (isinstance(kind, type) and issubclass(kind, RecoveringScheduler)):
        is_async = bool(config.scheduler_config.async_scheduling)
        ours = "KvbraidAsyncScheduler" if is_async else "KvbraidScheduler"
        raise UnsupportedError(
            f"OffloadConnector with the scheduler {kind.__name__}: it works on kvbraid's cache; "
            f"pass --scheduler-cls kvbraid.integrations.vllm.{ours}"
        )


def _check_hashes(config: VllmConfig) -> None:
    algorithm = config.cache_config.prefix_caching_hash_algo
    if algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in os.environ:
        raise UnsupportedError(
            f"a disk tier with the hashes {algorithm} and a random seed: no later engine would "
            "find a record; set PYTHONHASHSEED, or pass --prefix-caching-hash-algo sha256"
        )
