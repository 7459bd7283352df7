"""Whether a service that has started knows its pods by now: who is waited for, and for how long.

A pod is waited for until each of its ranks has finished its first rebuild. Nobody can know whether
an engine that does not answer is still starting or will never come, so the wait has an end, which
counts from the start of the service: a pod that is registered much later holds up nobody. The
clock is passed in.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kvbraid.ids import PodState
from kvbraid.service.answers import FeedRow

_UNREACHED: Final = "not connected"
_REBUILDING: Final = "in the first rebuild"


class Readiness:
    """Who is missing, until `limit_s` seconds have passed since this was made.

    Args:
        limit_s: Seconds after which nobody is waited for any more.
        clock: Returns the time in seconds; it never runs backwards.
    """

    def __init__(self, limit_s: float, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends_at = clock() + limit_s

    def missing(self, ranks: Iterable[FeedRow]) -> str:
        """Name the pods that are waited for, sorted, by what they lack; empty if there are none.

        A pod of several ranks is named under everything that one of them lacks.
        """
        if self._clock() >= self._ends_at:
            return ""
        pods: dict[str, set[str]] = {_UNREACHED: set(), _REBUILDING: set()}
        for rank in ranks:
            if not rank.is_rebuilt:
                lacks = _UNREACHED if rank.state is PodState.STALE else _REBUILDING
                pods[lacks].add(rank.pod)
        return "; ".join(
            f"{lacks}: {', '.join(sorted(names))}" for lacks, names in pods.items() if names
        )
