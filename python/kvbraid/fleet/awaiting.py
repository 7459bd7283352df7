"""A score inside an event loop: at once where that is short, else on a thread.

This is the only module below the service that knows an event loop, and only while a caller
awaits. An answer at once holds the loop for as long as it takes; an answer on a thread, for as
long as it takes to hand the request over and to take the answer back.
"""

from collections.abc import Sized
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvbraid.fleet.answer import Scores
    from kvbraid.fleet.index import FleetIndex
    from kvbraid.fleet.request import Request

AT_ONCE_TOKENS: Final = 32_768
"""The longest request that is scored at once, each rank counted as some tokens more.

`make bench ONLY=score_async` measures it.
"""

TOKENS_OF_A_RANK: Final = 48
"""A row of an answer takes about as long as so many tokens."""


async def score(index: "FleetIndex", request: "Request", *, num_ranks: int) -> "Scores":
    """Score a request; see `FleetIndex.score_async`."""
    from asyncio import to_thread  # It takes milliseconds to load, and a caller has it already.

    tokens: object = getattr(request, "token_ids", ())
    num_tokens = len(tokens) if isinstance(tokens, Sized) else 0
    if num_tokens + num_ranks * TOKENS_OF_A_RANK <= AT_ONCE_TOKENS:
        scores = index.try_score(request)  # It refuses what is no request.
        if scores is not None:
            return scores
    return await to_thread(index.score, request)
