"""`kvbraid relay`: what engines publish goes into the log of events, and nothing is indexed.

It follows pods as `kvbraid serve` does, with the same tracker of sequence numbers. So the log has
every batch once and in order, and what the relay has missed is asked of the engine before anything
later is written. Its answers about pods are bounds, because it knows nothing of their blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from kvbraid.errors import InvalidValueError
from kvbraid.events.digest import RANDOM
from kvbraid.events.sequence import Settled
from kvbraid.extras import require
from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId, PodState
from kvbraid.service.config import FleetConfig
from kvbraid.service.feeds.rank_feed import BatchRun, FeedConfig, RankFeed
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.replicas import SharedTable
from kvbraid.service.serve import new_service
from kvbraid.service.shared.log_writer import LogWriter
from kvbraid.service.shared.threads import on_thread

FIRST_S: Final = 1.0
"""In which the log is waited for at the start; later, pods begin again when it comes."""

_NOT_INDEXED: Final = "relayed, and not indexed here"


class _RelayedBatch(NamedTuple):
    """What is said of a batch that was taken: nobody has looked into it."""

    cleared: int = 0
    refused: int = 0


class RelaySink:
    """The log as a sink: it has the calls of `Sink`. States are shown in an index."""

    def __init__(self, index: FleetIndex, log: LogWriter) -> None:
        self._index = index
        self._log = log

    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> Sequence[_RelayedBatch]:
        """Have batches stored; none of them if the log has no room in time."""
        return [_RelayedBatch()] * self._log.take(pod, dp_rank, payloads, budget_s)

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Let a new start begin."""
        self._log.break_off(pod, dp_rank)

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Likewise: readers must not take what follows for what came next."""
        self._log.break_off(pod, dp_rank)

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Show a state; nothing is exact here."""
        if state is PodState.EXACT:
            state, reason = PodState.DEGRADED, _NOT_INDEXED
        self._index.set_state(pod, state, dp_rank=dp_rank, reason=reason)

    def note_refused(self, pod: PodId, reason: str, *, dp_rank: int = 0) -> None:
        """Count it."""
        self._index.note_refused(pod, reason, dp_rank=dp_rank)


class RelayedFeed(RankFeed):
    """A feed whose batches go into the log; whenever it begins, it goes on where the log ends."""

    def __init__(self, *arguments: Any, log: LogWriter, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.tracker.is_strict = True
        self._log = log
        log.wake_with(self.pod, self.rank, lambda: self._owner.hand_in(self))

    def read(self, now: float) -> bool:
        """As any feed, unless the log must be gone on with where it ends."""
        self._log.check(self.pod, self.rank)
        return super().read(now)

    def apply(self, run: BatchRun) -> None:
        """Say which numbers the batches have; then as any feed."""
        self._log.at(self.pod, self.rank, run.first)
        super().apply(run)

    def begin_anew(self, why: str) -> None:
        """Go on where the log ends."""
        super().begin_anew(why)
        progress = self._log.progress(self.pod, self.rank)
        if progress is not None:
            self.tracker.go_on(progress)


class RelaySubscriber(Subscriber):
    """Brings what pods publish into the log."""

    def __init__(self, index: FleetIndex, table: SharedTable, **options: float) -> None:
        from kvbraid.service.shared.nats_server import NatsServer  # Only who shares needs it.

        user, password = table.relay_user or table.user, table.relay_password_file
        password = password or table.password_file
        relaying = msgspec.structs.replace(table, user=user, password_file=password)
        self.server = NatsServer(relaying)
        self.writer = LogWriter(relaying, self.server, RANDOM)
        super().__init__(RelaySink(index, self.writer), **options)  # type: ignore[arg-type]
        self.new_feed = lambda *given, **named: RelayedFeed(*given, log=self.writer, **named)

    def add(self, pod: PodId, feed: FeedConfig, progress: Sequence[Settled] = ()) -> None:
        """Follow a pod from where the log ends; `progress` is none of a relay."""
        del progress
        super().add(pod, feed, self.writer.fetch(pod, feed.dp_size))

    def remove(self, pod: PodId) -> None:
        """Stop following a pod; what the log has of it stays there."""
        super().remove(pod)
        self.writer.leave(pod)


def relay(config: FleetConfig, *, announce: Callable[[str], None]) -> None:
    """Relay until SIGTERM or SIGINT; may end the process itself, with 0.

    Raises:
        InvalidValueError: The configuration has no log, or the extra `nats` is not installed.
        KvbraidError: As `run_server`.
    """
    table = config.shared
    if table.log is None:
        raise InvalidValueError("kvbraid relay writes the log of events; give shared.log its name")
    try:
        require("nats", "kvbraid relay")
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None
    index = msgspec.structs.replace(config.index, snapshots=None, neighbour=None)
    # A front's configuration names shards, and a relay follows pods itself.
    shared = msgspec.structs.replace(table, shards=[], shard_key=None)
    service = new_service(
        replace(config, index=index, shared=shared),
        lambda made, **options: RelaySubscriber(made, table, **options),
    )
    feed = service.feed
    assert isinstance(feed, RelaySubscriber)
    service.log = feed.writer

    def failed() -> None:
        feed.server.problem = "writing has failed, as the log lines say"

    with on_thread("kvbraid-log", feed.writer.run, failed):
        feed.writer.is_there(FIRST_S)
        # Bookings are nothing to a relay, and it reads no log.
        run_server(replace(config, shared=SharedTable()), service, announce=announce)
    end_process()
