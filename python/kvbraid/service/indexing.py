"""The `[index]` table: how blocks are placed and scored, how much memory that takes, what is kept.

Nothing here reads a file.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvbraid.service.weights import DEFAULT_WEIGHTS, TierWeights

_Bytes = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_PathText = Annotated[str, Meta(min_length=1)]


class IndexTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How blocks are placed and scored, how much memory the index may use, and where it is saved.

    `snapshots` is a folder, and `secret_file` has 32 bytes that servers share; without it, the
    folder has a secret of its own. A relative path is beside the file that names it. `neighbour`
    is the URL of a server from which this one starts, and `neighbour_key` what that takes.
    """

    keys: Literal["auto", "join"] = "auto"
    memory_limit_bytes: _Bytes | None = None
    limbo_limit_bytes: _Bytes = 64 << 20
    promise_limit_bytes: _Bytes = 64 << 20
    seen_limit_bytes: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 32 << 20
    tier_weights: TierWeights = DEFAULT_WEIGHTS
    canonical_block_size: Annotated[int, Meta(ge=1, lt=1 << 32)] = 16
    snapshots: _PathText | None = None
    secret_file: _PathText | None = None
    neighbour: _PathText | None = None
    neighbour_key: Annotated[str, Meta(min_length=1)] | None = None
