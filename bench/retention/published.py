"""Two policies of retention from papers, written from what the papers say.

`Utility` is Marconi's (Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys
2025, arXiv 2411.19379): a request leaves a checkpoint at its end, and where it branches off from
what is kept. The one with the lowest `recency + alpha * efficiency` goes, where the efficiency is
the compute that it saves over the memory that it takes; both are scaled to 0 to 1 over the
candidates, which have at most one checkpoint right after them. After the first eviction, some
requests are played again with each alpha, and the best is kept.

`Placed` has the checkpoints of "Sparse Prefix Caching for Hybrid and Recurrent LLM Serving"
(Shirokikh and Nikolenko, arXiv 2605.05219): a fixed number for each request, at the depths at
which requests were seen to overlap with earlier ones, chosen by dynamic programming so that the
tokens that are computed again are fewest. The paper says nothing of eviction: the least recently
used one goes. As engines do, the end of the prompt is kept as well.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Final

from kvbraid.sim.traces.prefix_hashes import num_leading

from bench.retention.checkpoints import Cache, Checkpoint, Prefix, Visit

ALPHAS: Final = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
TRIED: Final = 5
"""Requests that are played again, per request before the first eviction."""


class Utility:
    """Recency and efficiency; alpha is found from the requests after the first eviction."""

    def __init__(self, alpha: float | None = None) -> None:
        self.alpha = alpha or 0.0
        self._is_tuned = alpha is not None
        self._before: Cache | None = None
        self._played: list[Visit] = []
        self._num_before = 0

    def keep(self, visit: Visit, hit: int, cache: Cache) -> Iterable[int]:
        """Return the branch, if there is one, and the end."""
        self._note(visit)
        held = min(cache.held(visit.path), visit.usable(cache.sizes.unit))
        return [held] * (held > hit) + [visit.usable(cache.sizes.unit)]

    def victim(self, candidates: Sequence[Checkpoint], now: int, cache: Cache) -> Checkpoint:
        """Return the candidate of the lowest utility."""
        few = [each for each in candidates if len(each.children) <= 1] or candidates
        oldest, latest = min(e.used_at for e in few), max(e.used_at for e in few)
        efficiency = {
            id(each): (each.depth - each.start) / max(cache.freed(each), 1) for each in few
        }
        best = max(efficiency.values()) or 1.0
        if not self._is_tuned and self._before is None:
            self._before = deepcopy(cache)

        def utility(each: Checkpoint) -> float:
            recency = (each.used_at - oldest) / max(latest - oldest, 1)
            return recency + self.alpha * efficiency[id(each)] / best

        return min(few, key=utility)

    def _note(self, visit: Visit) -> None:
        if self._is_tuned:
            return
        if self._before is None:
            self._num_before += 1
            return
        self._played.append(visit)
        if len(self._played) >= TRIED * self._num_before:
            self.alpha = max(ALPHAS, key=self._tried)
            self._is_tuned, self._before, self._played = True, None, []

    def _tried(self, alpha: float) -> int:
        """Return the units that the played requests would have reused."""
        cache = deepcopy(self._before)
        assert cache is not None
        cache.policy = Utility(alpha)
        return sum(cache.serve(visit) for visit in self._played)


class Placed:
    """Checkpoints where requests overlapped; the least recently used one goes."""

    def __init__(self, budget: int = 4, *, again: int = 50, remembered: int = 1_000) -> None:
        self._budget = budget
        self._again = again
        self._overlaps: deque[int] = deque(maxlen=remembered)
        self._seen: set[Prefix] = set()
        self._depths: tuple[int, ...] = ()
        self._num_requests = 0

    def keep(self, visit: Visit, hit: int, cache: Cache) -> Iterable[int]:
        """Return the depths of the placement, and the end."""
        usable = visit.usable(cache.sizes.unit)
        path = visit.path[:usable]
        self._overlaps.append(num_leading(path, self._seen.__contains__))
        self._seen.update(visit.path)
        self._num_requests += 1
        if self._num_requests % self._again == 0:
            self._depths = placement(Counter(self._overlaps), self._budget)
        return sorted({depth for depth in self._depths if depth < usable} | {usable})

    def victim(self, candidates: Sequence[Checkpoint], now: int, cache: Cache) -> Checkpoint:
        """Return the least recently used one; of those, the deepest."""
        return min(candidates, key=lambda each: (each.used_at, -each.depth))


def placement(overlaps: Counter[int], budget: int) -> tuple[int, ...]:
    """Return at most `budget` depths, such that the units computed again are fewest.

    A request that overlaps with earlier ones up to `d` resumes at the last depth up to `d`.
    """
    depths = sorted(depth for depth in overlaps if depth)
    # saved[i]: the most units that requests save whose overlap ends before depths[i], and where.
    saved: list[tuple[float, tuple[int, ...]]] = [(0, ())] * (len(depths) + 1)
    reach = [0] * (len(depths) + 1)
    for i, depth in enumerate(depths):
        reach[i + 1] = reach[i] + overlaps[depth]
    for _ in range(budget):
        saved = [
            max(
                (
                    saved[start][0] + depths[start] * (reach[end] - reach[start]),
                    (*saved[start][1], depths[start]),
                )
                for start in range(end)
            )
            if end
            else (0, ())
            for end in range(len(depths) + 1)
        ]
    return saved[-1][1]
