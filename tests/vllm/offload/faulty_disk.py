"""A disk tier of a running engine whose calls fail on demand; in the engine's process alone."""

import errno
import os
import time
from typing import Any, Final

from kvbraid.transfer.status import Status

_ERRORS: Final = {"eio": errno.EIO, "enospc": errno.ENOSPC, "dead": errno.ENODEV}
_HUNG_S: Final = 3.0


class FaultyDisk:
    """`fault`: `eio` of loads, `enospc` of stores, `hang` of loads, `dead` of both; or None."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - the tier's private places.
        self.fault: str | None = None
        self._tier = store._tier
        self._load, self._store = self._tier.load, self._tier.store
        self._tier.load, self._tier.store = self.load, self.store

    def load(self, *given: Any) -> Status:  # noqa: ANN401 - passed on.
        if self.fault == "hang":
            time.sleep(_HUNG_S)
        self._raise_if({"eio", "dead"})
        status: Status = self._load(*given)
        return status

    def store(self, *given: Any) -> Status:  # noqa: ANN401 - passed on.
        if self.fault == "enospc":
            return Status.FULL
        self._raise_if({"dead"})
        status: Status = self._store(*given)
        return status

    def _raise_if(self, faults: set[str]) -> None:
        if self.fault in faults:
            number = _ERRORS[self.fault]
            raise OSError(number, os.strerror(number))
