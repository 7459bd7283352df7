"""A score inside an event loop: at once where that is short, else on a thread.

This is the only module below the service that knows an event loop, and only while a caller
awaits. An answer at once holds the loop for as long as it takes; an answer on a thread, for as
long as it takes to hand the request over and to take the answer back.
"""

from collections.abc import Callable, Sized
from typing import Final, TypeVar

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")

AT_ONCE_TOKENS: Final = 32_768
"""The longest request that is scored at once, each rank counted as some tokens more.

`make bench ONLY=score_async` measures it.
"""

TOKENS_OF_A_RANK: Final = 48
"""A row of an answer takes about as long as so many tokens."""


async def answer(
    request: _Request,
    *,
    num_ranks: int,
    try_score: Callable[[_Request], _Answer | None],
    score: Callable[[_Request], _Answer],
) -> _Answer:
    """Score a request; see `FleetIndex.score_async`. `try_score` answers None if it would wait."""
    from asyncio import to_thread  # It takes milliseconds to load, and a caller has it already.

    tokens: object = getattr(request, "token_ids", ())
    num_tokens = len(tokens) if isinstance(tokens, Sized) else 0
    if num_tokens + num_ranks * TOKENS_OF_A_RANK <= AT_ONCE_TOKENS:
        answered = try_score(request)  # It refuses what is no request.
        if answered is not None:
            return answered
    return await to_thread(score, request)
