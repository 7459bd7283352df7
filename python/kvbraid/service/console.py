"""The `[console]` table of fleet.toml: what pages in a browser may show, and how much is kept.

The pages themselves are in `kvbraid.console`; `http` serves them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class ConsoleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many of the last decided requests are kept, with or without their prompts.

    With `prompts` the token ids of kept requests stay in memory, up to `prompt_bytes` together, so
    that they can be explained; they are never sent to anybody. At most `streams` pages are told of
    changes at a time.
    """

    requests: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    prompts: bool = False
    prompt_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 64 << 20
    streams: Annotated[int, Meta(ge=0, le=1024)] = 32
