"""What a front has in place of a subscriber: its shards follow the pods."""

from collections.abc import Callable, Mapping, Sequence

from kvbraid.events.sequence import Settled
from kvbraid.ids import PodId
from kvbraid.service.config import Followed


class NoFeed:
    """Follows nobody; `on_close` is called when it is closed."""

    failure: str | None = None

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.close = on_close

    def add(self, pod: PodId, config: Followed, progress: Sequence[Settled] = (), /) -> None:
        """Follow nothing: the pod's shard does."""

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        """Return False: there is nothing to work on."""
        del pod, work
        return False

    def check(self, config: Followed, replaced: Followed | None, /) -> None:
        """Accept every address."""

    def remove(self, pod: PodId, /) -> None:
        """Do nothing."""

    def status(self) -> Sequence[object]:
        """Return no row."""
        return ()

    def strays(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def start(self) -> None:
        """Do nothing."""
