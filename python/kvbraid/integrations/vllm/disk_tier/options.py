"""What operators ask of the tier, and whose records an engine may read.

Invariant: whatever is unknown or contradicts itself is refused by name before a thread starts or a
directory is made. Two engines read each other's records only if all that vLLM tells a tier of
their memory is equal.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Literal

from msgspec import Meta
from vllm.v1.kv_offload.config import OffloadingConfig

from kvbraid.errors import InvalidValueError
from kvbraid.integrations.vllm.version import SERIES
from kvbraid.reading import MAX_SIZE, Fields, read_into
from kvbraid.transfer.keys import Namespace
from kvbraid.transfer.records import PAGE_BYTES

_PREFIX = "secondary_tiers: "
_UpToADay = Annotated[float, Meta(gt=0, le=86_400)]


class DiskTierSettings(Fields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of an entry of `secondary_tiers`, beside those that vLLM reads itself.

    Attributes:
        disk_directory: The directory of records.
        disk_bytes: The limit of all records in the directory, other engines' included.
        disk_threads: How many records are written or read at a time.
        disk_load_seconds: How long a record is waited for before its load has failed.
        disk_store_seconds: How long one may wait to be written.
        disk_scan_seconds: How often the directory is searched for what other engines stored.
        rest_seconds: How long nothing is asked for after three failed loads in a row, and nothing
            stored after three failed stores or once the directory is full.
        revision: What tells these weights from others under the model's name.
        locality: Where the directory is, for events and for requests that choose tiers by it.
    """

    disk_directory: Annotated[str, Meta(min_length=1)]
    disk_bytes: Annotated[int, Meta(ge=1, le=MAX_SIZE)]
    disk_threads: Annotated[int, Meta(ge=2, le=64)] = 4
    disk_load_seconds: _UpToADay = 5.0
    disk_store_seconds: _UpToADay = 30.0
    disk_scan_seconds: _UpToADay = 5.0
    rest_seconds: _UpToADay = 10.0
    revision: str = ""
    locality: Literal["LOCAL", "REMOTE"] | None = None


def disk_tier_settings(options: Mapping[str, object], row_bytes: int) -> DiskTierSettings:
    """Return what is asked for, where a chunk has `row_bytes`.

    Raises:
        InvalidValueError: A key is unknown, has a wrong value, or not one record has room.
    """
    settings = read_into(
        DiskTierSettings,
        options,
        InvalidValueError,
        prefix=_PREFIX,
        remedy='give at least {"disk_directory": "DIR", "disk_bytes": limit of all files there}',
    )
    least = PAGE_BYTES + row_bytes
    if settings.disk_bytes < least:
        raise InvalidValueError(
            f"{_PREFIX}disk_bytes = {settings.disk_bytes}, but one record has {least} bytes; "
            "expected room for thousands of them"
        )
    return settings


def namespace_of(config: OffloadingConfig, row_bytes: int, revision: str) -> Namespace:
    """Return whose rows an engine's are: all that vLLM tells a tier of what is in them."""
    parallel = config.parallel
    layout = {
        "vllm": SERIES,
        "row_bytes": row_bytes,
        "kv_cache_layout": config.kv_cache_layout,
        "canonical": config.canonical_layout,
        "replicated": config.replicated_layout,
        "sizes": [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "cache": asdict(config.cache),
        "groups": [asdict(group) for group in config.groups],
    }
    return Namespace(
        layout=json.dumps(layout, sort_keys=True),
        model=config.model.name,
        revision=revision,
        cache_dtype=config.model.dtype,
        hash_algorithm="",  # A tier is not told it; hashes of two algorithms do not meet.
        hash_seed=os.environ.get("PYTHONHASHSEED", ""),
        num_ranks=parallel.world_size,
    )
