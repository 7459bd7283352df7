"""One rank's event feed: carries out what its sequence tracker says, and counts.

Opens no socket: links and replays bring numbers and payloads, the sink takes the batches. All
methods but `status` belong to the subscriber's thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kvbraid.events.sequence import (
    AskReplay,
    Deliver,
    Lose,
    Output,
    Reset,
    SequenceTracker,
    SetState,
)
from kvbraid.ids import PodId, PodState
from kvbraid.service.endpoints import topic_names

MAX_MESSAGE_BYTES: Final = 256 << 20
"""ZeroMQ drops the connection of who sends a longer frame."""

MAX_SEQ: Final = (1 << 63) - 1
"""Above this a number is refused: no engine counts that far, and the end marker is up there."""


class Applied(Protocol):
    """What a sink says of one applied batch."""

    @property
    def cleared(self) -> int:
        """How many AllBlocksCleared the batch held."""


class Sink(Protocol):
    """Where batches go: `FleetIndex`, or a fake. Called from the subscriber's thread only."""

    def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
        """Apply one published batch; bad bytes are counted there, not raised."""

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Forget what the rank of a restarted engine held."""

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Take note that batches are lost for good."""

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Show this state from now on."""

    def note_refused(self, pod: PodId, reason: str, *, dp_rank: int = 0) -> None:
        """Count something that could not be read as a batch of this pod."""


class FeedConfig(Protocol):
    """Where a pod publishes; `PodFeed` and any object with these attributes."""

    @property
    def endpoint(self) -> str:
        """Endpoint of rank 0; rank r of a tcp endpoint has port + r."""

    @property
    def model(self) -> str:
        """The model that topics should name; empty: any."""

    @property
    def replay_endpoint(self) -> str | None:
        """Replay endpoint of rank 0; None: nothing can be replayed."""

    @property
    def bind(self) -> bool | None:
        """Whether the subscriber binds `endpoint`; None: when its host is `*`."""

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""


@dataclass(frozen=True, slots=True)
class PodFeed:
    """Where one pod publishes; see FeedConfig for the fields."""

    endpoint: str
    replay_endpoint: str | None = None
    bind: bool | None = None
    dp_size: int = 1
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatus:
    """How far one rank has been followed.

    `endpoint` is the real one where port 0 was asked for; `topic` is the last topic seen;
    `messages` counts applied batches, replayed ones included; `lost` counts batches;
    `duplicates`, `overflowed` (see sequence.py), `restarts` and `replays` count what they say.
    """

    pod: PodId
    dp_rank: int
    endpoint: str
    state: PodState
    reason: str
    last_seq: int | None
    messages: int
    topic: str
    duplicates: int
    restarts: int
    lost: int
    overflowed: int
    replays: int


class RankFeed:
    """Follows one rank of one pod.

    Args:
        start_replay: Starts a replay for this feed, replacing one under way; False: it cannot.
        stop_replay: Drops the replay under way, if any.
    """

    def __init__(
        self,
        sink: Sink,
        pod: PodId,
        rank: int,
        *,
        tracker: SequenceTracker,
        start_replay: Callable[["RankFeed", int], bool],
        stop_replay: Callable[["RankFeed"], None],
    ) -> None:
        self.pod = pod
        self.rank = rank
        self.tracker = tracker
        self.model = ""
        self.endpoint = ""
        self.replay_endpoint: str | None = None
        self.topic = b""
        self.heard_at = 0.0
        self._sink = sink
        self._apply = sink.apply
        self._start_replay = start_replay
        self._stop_replay = stop_replay
        self._messages = 0
        self._ask: int | None = None

    def stop_replay(self) -> None:
        """Drop the replay under way, if any."""
        self._stop_replay(self)

    def take(self, seq: int, payload: bytes) -> None:
        """Take a live batch."""
        if not self.tracker.advance(seq, payload):
            self.carry_out(self.tracker.message(seq, payload))
        elif self._deliver(payload):
            self.carry_out(self.tracker.cleared(seq))

    def _deliver(self, payload: bytes) -> int:
        self._messages += 1
        return self._apply(self.pod, payload, dp_rank=self.rank).cleared

    def carry_out(self, outputs: list[Output]) -> None:
        """Do what the tracker said, and what follows from that."""
        cleared = -1
        for output in outputs:
            if isinstance(output, Deliver):
                if self._deliver(output.payload):
                    cleared = output.seq
            else:
                _ACTIONS[type(output)](self, output)
        if cleared >= 0:
            self.carry_out(self.tracker.cleared(cleared))
        if self._ask is not None:
            start, self._ask = self._ask, None
            if not self._start_replay(self, start):
                self.carry_out(self.tracker.replay_failed())

    def announce(self) -> None:
        """Show the state before the first connection."""
        self._set_state(SetState(self.tracker.state, self.tracker.reason))

    def connected(self) -> None:
        """The connection stands."""
        self.carry_out(self.tracker.connected())

    def disconnected(self) -> None:
        """The connection is gone."""
        self.stop_replay()
        self.carry_out(self.tracker.disconnected())

    def fall_silent(self) -> None:
        """Ask whether the last batch was lost, where there is someone to ask."""
        if self.replay_endpoint is not None:
            self.carry_out(self.tracker.silence())

    def refuse(self, reason: str) -> None:
        """Count a message that cannot be one of this feed's batches."""
        self._sink.note_refused(self.pod, reason, dp_rank=self.rank)

    def contradicts(self, topic: bytes) -> bool:
        """Whether a topic names another pod or model than the registration, which decides."""
        names = topic_names(topic)
        return names is not None and (
            names[0] != self.pod or bool(self.model and names[1] != self.model)
        )

    def status(self) -> FeedStatus:
        """Return a snapshot; from any thread."""
        tracker = self.tracker
        counts = tracker.counts
        return FeedStatus(
            pod=self.pod,
            dp_rank=self.rank,
            endpoint=self.endpoint,
            state=tracker.state,
            reason=tracker.reason,
            last_seq=None if tracker.last < 0 else tracker.last,
            messages=self._messages,
            topic=self.topic.decode(errors="replace"),
            duplicates=counts.duplicates,
            restarts=counts.restarts,
            lost=counts.lost,
            overflowed=counts.overflowed,
            replays=counts.replays,
        )

    def _note_ask(self, output: AskReplay) -> None:
        """Remember to ask once the other outputs are carried out: the state is among them."""
        self._ask = output.start

    def _reset(self, output: Reset) -> None:
        self._sink.reset(self.pod, dp_rank=self.rank)

    def _lose(self, output: Lose) -> None:
        self._sink.lose(self.pod, dp_rank=self.rank)

    def _set_state(self, output: SetState) -> None:
        self._sink.set_state(self.pod, output.state, dp_rank=self.rank, reason=output.reason)


_ACTIONS: Final[Mapping[type[Output], Callable[[RankFeed, Any], None]]] = {
    AskReplay: RankFeed._note_ask,
    Reset: RankFeed._reset,
    Lose: RankFeed._lose,
    SetState: RankFeed._set_state,
}
