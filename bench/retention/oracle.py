"""A retention that knows the future: how much a better one could still gain.

It keeps exactly the boundaries at which later requests could resume, and lets that one go whose
next use saves least per block and per request until then. It is greedy, so it is no upper bound
for models with windows or states; it is what knowing the future is worth to a policy like ours.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from bench.retention.checkpoints import Cache, Checkpoint, Prefix, Visit, overlaps

NEVER: Final = 1 << 40
"""The number of a request that does not come."""


class Oracle:
    """Keeps what is used again, the sooner the longer."""

    def __init__(self, played: Sequence[Visit], unit: int) -> None:
        self._uses: dict[Prefix, list[int]] = defaultdict(list)
        for visit, overlap in zip(played, overlaps(played, unit), strict=True):
            if overlap:
                self._uses[visit.path[overlap - 1]].append(visit.number)
        for uses in self._uses.values():
            uses.reverse()

    def keep(self, visit: Visit, hit: int, cache: Cache) -> Iterable[int]:
        """Return the depths at which some later request would resume."""
        ends = enumerate(visit.path, start=1)
        return [
            depth
            for depth, prefix in ends
            if prefix in self._uses and self._next(prefix, visit.number) < NEVER
        ]

    def victim(self, candidates: Sequence[Checkpoint], now: int, cache: Cache) -> Checkpoint:
        """Return the one that saves least per block and per request of waiting."""

        def worth(checkpoint: Checkpoint) -> float:
            wait = self._next(checkpoint.prefix, now) - now
            return (checkpoint.depth - checkpoint.start) / (max(cache.freed(checkpoint), 1) * wait)

        return min(candidates, key=worth)

    def _next(self, prefix: Prefix, now: int) -> int:
        uses = self._uses[prefix]
        while uses and uses[-1] <= now:
            uses.pop()
        return uses[-1] if uses else NEVER
