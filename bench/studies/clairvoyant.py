"""What no policy can beat: an eviction that knows the future.

For a model of full attention, in the blocks of the trace. The block whose next use is the furthest
goes first (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966), of
those with the same next use the deepest, so that what is held is always whole beginnings.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from kvbraid.sim.traces.trace import Trace, TraceRequest

_NEVER: Final = 1 << 62


def working_set(trace: Trace) -> int:
    """Return how many blocks the prompts of a trace have, shared ones once."""
    return len({block for request in trace.play() for block in request.ids})


def hit_rate(trace: Trace, num_blocks: int) -> float:
    """Return the share of prompt tokens that such a pool serves; requests come one at a time."""
    requests = list(trace.play())
    held: dict[int, int] = {}  # Block: its next use.
    furthest: list[tuple[int, int, int]] = []
    num_hit = 0
    for request, uses in zip(requests, _next_uses(requests), strict=True):
        ids = request.ids
        num_held = next((n for n, block in enumerate(ids) if block not in held), len(ids))
        num_hit += min(num_held * trace.block_tokens, request.num_tokens - 1)
        for depth, (block, use) in enumerate(zip(ids, uses, strict=True)):
            held[block] = use
            heappush(furthest, (-use, -depth, block))
        while len(held) > num_blocks:
            use, _, block = heappop(furthest)
            if held.get(block) == -use:
                del held[block]
    return num_hit / sum(request.num_tokens for request in requests)


def _next_uses(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """By request and block, the number of the request that has it next."""
    following: dict[int, int] = {}
    uses = []
    for number in reversed(range(len(requests))):
        ids = requests[number].ids
        uses.append([following.get(block, _NEVER) for block in ids])
        following.update(dict.fromkeys(ids, number))
    return uses[::-1]
