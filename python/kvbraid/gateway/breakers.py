"""Which pods have failed so often in a row that they are left alone for a while.

Once its rest is over, a pod is on trial: its next failure lets it rest again, its next answer
clears it. Times are handed in; nothing here knows why a pod failed.
"""

from collections.abc import Container

from kvbraid.ids import PodId


class Breakers:
    """The failures in a row of each pod that has any."""

    def __init__(self, *, failures: int, rest_s: float) -> None:
        self._limit = failures
        self._rest_s = rest_s
        self._failed: dict[PodId, int] = {}
        self._until: dict[PodId, float] = {}

    @property
    def resting(self) -> frozenset[PodId]:
        """The pods that are left alone."""
        return frozenset(self._until)

    def fail(self, pod: PodId, now: float) -> bool:
        """Note a failure; say whether the pod's rest begins."""
        failed = self._failed[pod] = self._failed.get(pod, 0) + 1
        if failed < self._limit or pod in self._until:
            return False
        self._until[pod] = now + self._rest_s
        return True

    def succeed(self, pod: PodId) -> None:
        """Note an answer. It does not end a rest: it may have been asked for before that."""
        if pod not in self._until:
            self._failed.pop(pod, None)

    def rested(self, now: float) -> list[PodId]:
        """Return the pods whose rest is over; they are on trial from now on."""
        pods = [pod for pod, until in self._until.items() if until <= now]
        for pod in pods:
            del self._until[pod]
            self._failed[pod] = self._limit - 1
        return pods

    def retain(self, pods: Container[PodId]) -> None:
        """Forget the pods that are not among these."""
        for pod in [pod for pod in self._failed if pod not in pods]:
            del self._failed[pod]
            self._until.pop(pod, None)
