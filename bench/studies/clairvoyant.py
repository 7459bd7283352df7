"""An eviction that knows the future, which no policy can beat.

It is for a model with full attention only, and uses the blocks of the trace. The block whose next
use is furthest away is evicted first (Belady, "A study of replacement algorithms for a
virtual-storage computer", 1966). Among blocks with the same next use, the deepest is evicted
first, so the pool always holds whole prefixes.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from kvbraid.sim.traces.prefix_hashes import num_leading
from kvbraid.sim.traces.trace import Trace, TraceRequest

_NEVER: Final = 1 << 62


def working_set(trace: Trace) -> int:
    """Return how many different blocks the prompts of a trace have."""
    return len({block for request in trace.play() for block in request.ids})


def hit_rate(trace: Trace, num_blocks: int, *, warm_up: int = 0) -> float:
    """Return the share of prompt tokens that are reused; requests come one at a time.

    The first `warm_up` requests are not counted.
    """
    requests = list(trace.play())
    held: dict[int, int] = {}  # The next use of each block.
    furthest: list[tuple[int, int, int]] = []
    num_hit = 0
    for number, (request, uses) in enumerate(zip(requests, _next_uses(requests), strict=True)):
        ids = request.ids
        num_held = num_leading(ids, held.__contains__)
        if number >= warm_up:
            num_hit += min(num_held * trace.block_tokens, request.num_tokens - 1)
        for depth, (block, use) in enumerate(zip(ids, uses, strict=True)):
            held[block] = use
            heappush(furthest, (-use, -depth, block))
        while len(held) > num_blocks:
            use, _, block = heappop(furthest)
            if held.get(block) == -use:
                del held[block]
    return num_hit / sum(request.num_tokens for request in requests[warm_up:])


def _next_uses(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """For each request and block, return the number of the next request that has the block."""
    following: dict[int, int] = {}
    uses = []
    for number in reversed(range(len(requests))):
        ids = requests[number].ids
        uses.append([following.get(block, _NEVER) for block in ids])
        following.update(dict.fromkeys(ids, number))
    return uses[::-1]
