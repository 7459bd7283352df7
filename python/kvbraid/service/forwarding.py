"""The `[gateway]` table of fleet.toml: how `kvbraid route` sends requests on, and for how long.

Only the gateway reads it; it is here because one file configures both.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

_Seconds = Annotated[float, Meta(gt=0)]
_AtLeastOne = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_Path = Annotated[str, Meta(pattern=r"^/")]

PATHS: Final = (
    "/v1/", "/v2/", "/tokenize", "/detokenize", "/rerank", "/score", "/classify", "/pooling",
    "/generate",
)  # fmt: skip
"""What engines offer to everyone. What they offer to their operators is not passed on."""


class ForwardingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times are in seconds, and apply to one pod at a time.

    A pod must accept a connection within `connect_s`, send the first byte of an answer within
    `first_byte_s`, and never be silent for `silent_s` after that. A connection to a pod is closed
    after `idle_s`; engines close theirs after 5. Clients of event streams get a comment after
    `comment_s` without an event. After SIGTERM, requests in flight have `end_s` left.

    A request is tried up to `attempts` times, and only once if its body is longer than
    `kept_bytes`. After `failures` in a row a pod gets no request for `rest_s`. Above `requests` in
    flight, further ones are refused. While every pod that may get it is full, a request waits for
    up to `queued_s`, among at most `queued` others and `queued_bytes` of theirs. Each pod is asked
    for its metrics every `metrics_s`; `inf`: never. `paths` are the beginnings of paths that are
    passed on. If `tells` is false, no client is told what pods hold. With `include_usage`, streams
    whose clients do not ask for their usage are asked for it, and their clients do not see it. At
    `ends`, HAProxy tells of requests' ends, over UDP.
    """

    connect_s: _Seconds = 5.0
    first_byte_s: _Seconds = 300.0
    silent_s: _Seconds = 120.0
    idle_s: _Seconds = 3.0
    comment_s: _Seconds = 15.0
    end_s: _AtLeastOne = 30
    attempts: _AtLeastOne = 3
    kept_bytes: Annotated[int, Meta(ge=0)] = 1 << 20
    failures: _AtLeastOne = 5
    rest_s: _Seconds = 10.0
    requests: _AtLeastOne = 1024
    queued: Annotated[int, Meta(ge=0, le=1 << 20)] = 256
    queued_bytes: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 64 << 20
    queued_s: _Seconds = 30.0
    metrics_s: Annotated[float, Meta(ge=0.1)] = 1.0
    paths: tuple[_Path, ...] = PATHS
    tells: bool = True
    include_usage: bool = False
    ends: Annotated[str, Meta(pattern=r"^[^ ]+:[0-9]{1,5}$")] | None = None
