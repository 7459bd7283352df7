"""The `[envoy]` table of fleet.toml: where `kvbraid pick-serve` is asked, and its limits.

Only that command reads it; it is here because one file configures all.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class EnvoyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to listen for gRPC, and when a question is given up.

    `host` is `server.host` if it is left out. A decision must be there `decide_s` after its
    question. Above `streams` at a time, further requests are refused. An answer names up to
    `fallbacks` pods besides the chosen one; only some clusters of Envoy understand more than one.
    """

    host: Annotated[str, Meta(min_length=1)] | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] = 9002
    decide_s: Annotated[float, Meta(gt=0)] = 4.0
    streams: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] = 10_000
    fallbacks: Annotated[int, Meta(ge=0, le=8)] = 0
