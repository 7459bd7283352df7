"""Pods that one source finds, a name or a service, and registers: those and no others.

Invariant: a pod that somebody else has registered stays as it is. What the registry refuses is
told, and changes nothing. One thread at a time uses it.
"""

from collections.abc import Callable, Mapping
from logging import Logger

from kvbraid.errors import KvbraidError
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig
from kvbraid.service.errors import as_refusal
from kvbraid.service.registry import Service


class FoundPods:
    """The pods of one source.

    Args:
        service: Where they are registered.
        logger: Where refusals are told.
    """

    def __init__(self, service: Service, logger: Logger) -> None:
        self._service, self._logger = service, logger
        self._pods: dict[PodId, PodConfig] = {}

    @property
    def pods(self) -> Mapping[PodId, PodConfig]:
        """Those that are registered, as they were found last."""
        return self._pods

    def put(self, pod: PodId, found: Callable[[], PodConfig]) -> bool:
        """Register or change a pod; return whether it is one of this source's now."""
        if pod not in self._pods and pod in self._service.pods:
            return False  # Somebody else has registered it.

        def change() -> None:
            config = found()
            if config != self._pods.get(pod):
                self._service.put(pod, config)
                self._pods[pod] = config

        return self._try(pod, change)

    def delete(self, pod: PodId) -> None:
        """Remove a pod of this source."""
        del self._pods[pod]
        self._try(pod, lambda: self._service.delete(pod))

    def _try(self, pod: PodId, change: Callable[[], object]) -> bool:
        try:
            change()
        except KvbraidError as error:
            told = as_refusal(error).told()
            self._logger.warning("%s stays as it is: %s", pod, told)
            return False
        return True
