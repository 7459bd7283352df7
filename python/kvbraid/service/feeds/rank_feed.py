"""One rank's event feed: it carries out what its sequence tracker says, and counts.

It opens no socket: links and replays bring numbers and payloads, and the sink takes the batches.
Outputs wait in a list, and one turn carries out a slice of them, so a feed with much to do does
not delay others. Invariant: an output is carried out only after all earlier ones. A failure here
affects only this feed, which says so and starts again from 0. All methods except `status` belong
to the subscriber's thread.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kvbraid.errors import one_line
from kvbraid.events.sequence import (
    AskReplay,
    Deliver,
    Effect,
    Lose,
    Reset,
    SequenceTracker,
    SetState,
    Settled,
)
from kvbraid.events.wire import published_at
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.endpoints import topic_names

MAX_MESSAGE_BYTES: Final = 32 << 20
"""ZeroMQ drops the connection of an engine that sends a longer frame."""

TURN_S: Final = 0.02
"""How long a feed applies batches before the next feed's turn."""

GATHERED: Final = 64
"""The most batches that are taken or applied in one call."""

_GATHERED_BYTES: Final = 1 << 20

_KNOWN: Final = frozenset({PodState.EXACT, PodState.DEGRADED})
"""The states in which the feed has all that it can have."""

MAX_SEQ: Final = (1 << 63) - 1
"""Higher numbers are refused: no engine counts that far, and the end marker is one of them."""


class BatchRun(NamedTuple):
    """Batches of consecutive numbers to apply at once, at least one."""

    first: int
    payloads: list[bytes]


class SinkOutcome(Protocol):
    """What a sink says about one applied batch."""

    @property
    def cleared(self) -> int:
        """How many AllBlocksCleared the batch contained."""

    @property
    def refused(self) -> int:
        """How many of its events were refused."""


class Sink(Protocol):
    """Where batches go: `FleetIndex`, or a fake. Called from the subscriber's thread only."""

    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> Sequence[SinkOutcome]:
        """Apply published batches in order: at least one, and no further one once time is up.

        Returns one row per applied batch. Bad bytes are counted in it, not raised.
        """

    def reset(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Forget what the rank of a restarted engine held."""

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Note that batches are lost for good."""

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
        """Whether the subscriber binds `endpoint`; None: it does if the host is `*`."""

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

    `endpoint` is the real one if port 0 was asked for; `topic` is the last topic seen; `messages`
    counts applied batches, replayed ones included; `is_rebuilt` says that the first rebuild has
    ended and its batches are applied; `lost` counts batches; `duplicates`,
    `overflowed` (see sequence.py), `restarts` and `replays` count what their names say; `failures`
    counts how often the feed had to start again because something in it raised. `applied_at` is
    when the last batch was applied, by the monotonic clock. `lag_s` is how long before that its
    engine had made it, in seconds by both clocks; None if the engine does not say.
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
    failures: int
    is_rebuilt: bool
    applied_at: float | None = None
    lag_s: float | None = None


class Owner(Protocol):
    """What a feed asks of the follower that owns it."""

    def start_replay(self, feed: "RankFeed", start: int) -> bool:
        """Start a replay, replacing one under way; False: there is nobody to ask."""

    def stop_replay(self, feed: "RankFeed") -> None:
        """Drop the replay under way, if any."""

    def wake(self, feed: "RankFeed") -> None:
        """Arrange that the feed's `read` is called until it says that nothing is left."""

    def hand_in(self, feed: "RankFeed") -> None:
        """As `wake`, from any thread."""

    def start_again(self, feed: "RankFeed") -> None:
        """Reconnect a feed that has failed, after a pause."""


class RankFeed:
    """Follows one rank of one pod."""

    def __init__(
        self, sink: Sink, pod: PodId, rank: int, *, tracker: SequenceTracker, owner: Owner
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
        self._owner = owner
        self._todo: deque[Effect | BatchRun] = deque()
        self._cleared = -1  # The last delivered batch with a clear that the tracker must hear of.
        self._ask: int | None = None  # Where the replay that waits for its turn must begin.
        self._messages = 0
        self._applied_at: float | None = None
        self._lag_s: float | None = None
        self._failures = 0
        self._is_rebuilt = False

    @property
    def is_behind(self) -> bool:
        """Whether outputs wait to be carried out: until then nothing more should be read."""
        return bool(self._todo)

    def progress(self) -> Settled | None:
        """Return what is settled and in the sink; None while the sink lacks some of it."""
        is_behind = self._todo or self._cleared >= 0
        return None if is_behind else self.tracker.progress()

    def take(self, first: int, payloads: list[bytes]) -> None:
        """Take live batches of consecutive numbers: 1 to GATHERED of them."""
        if self.tracker.advance(first, payloads):
            self._todo.append(BatchRun(first, payloads))
            self._owner.wake(self)
            return
        for seq, payload in enumerate(payloads, first):
            self.carry_out(self.tracker.message(seq, payload))

    def carry_out(self, outputs: Sequence[Effect]) -> None:
        """Queue what the tracker said for the next turns."""
        if any(isinstance(output, AskReplay) for output in outputs):
            self.stop_replay()  # Its further answers are not those that are asked for now.
        if outputs:
            self._todo.extend(outputs)
            self._owner.wake(self)

    def read(self, now: float) -> bool:
        """Carry out a slice of the outputs; see Reader."""
        deadline = time.monotonic() + TURN_S
        while self._todo:
            self._step()
            if not self._todo:
                self._follow_up()
            if time.monotonic() >= deadline:
                break
        return bool(self._todo)

    def on_error(self, error: BaseException) -> None:
        """Say that something in this feed raised, and start again; see Reader."""
        self.fail(error)
        self._owner.start_again(self)

    def fail(self, error: BaseException) -> None:
        """Count and show a failure, and know nothing from now on; never raises.

        A batch may be half applied, so the rank is reset. A sink that cannot even take that (for
        example because the pod is no longer in it) is left alone.
        """
        self._failures += 1
        self._todo.clear()
        self._cleared, self._ask = -1, None
        why = one_line(f"the feed failed: {type(error).__name__}: {error}")
        with contextlib.suppress(BaseException):
            self.stop_replay()
        self.begin_anew(why)
        with contextlib.suppress(BaseException):
            self.refuse("feed_failed")

    def begin_anew(self, why: str) -> None:
        """Start again from nothing, and tell the sink, which may no longer know the pod."""
        for output in self.tracker.failed(why):
            with contextlib.suppress(BaseException):
                _ACTIONS[type(output)](self, output)

    def stop_replay(self) -> None:
        """Drop the replay under way, if any."""
        self._owner.stop_replay(self)

    def _step(self) -> None:
        """Carry out the first output; consecutive deliveries count as one."""
        output = self._todo.popleft()
        if isinstance(output, BatchRun):
            self.apply(output)
        elif isinstance(output, Deliver):
            self.apply(self._gather(output))
        else:
            _ACTIONS[type(output)](self, output)

    def _gather(self, deliver: Deliver) -> BatchRun:
        """Also take the deliveries right after it."""
        run = BatchRun(deliver.seq, [deliver.payload])
        num_bytes = len(deliver.payload)
        while self._todo and len(run.payloads) < GATHERED and num_bytes < _GATHERED_BYTES:
            output = self._todo[0]
            if not isinstance(output, Deliver) or output.seq != run.first + len(run.payloads):
                break
            self._todo.popleft()
            run.payloads.append(output.payload)
            num_bytes += len(output.payload)
        return run

    def apply(self, run: BatchRun) -> None:
        """Apply as many as there is time for; the others stay the first outputs."""
        first, payloads = run
        applied = self._sink.apply_many(self.pod, payloads, dp_rank=self.rank, budget_s=TURN_S)
        done = len(applied)
        self._messages += done
        if done:
            self._applied_at = time.monotonic()
            made = published_at(payloads[done - 1])
            self._lag_s = None if made is None else time.time() - made
        if done < len(payloads):
            self._todo.appendleft(BatchRun(first + done, payloads[done:]))
        for seq, result in enumerate(applied, first):
            if result.cleared:
                self._cleared = seq

    def _follow_up(self) -> None:
        """Tell the tracker of a clear; then ask for the replay that it wants."""
        if self._cleared >= 0:
            cleared, self._cleared = self._cleared, -1
            self._todo.extend(self.tracker.cleared(cleared))
        if self._ask is not None and not self._todo:
            start, self._ask = self._ask, None
            if not self._owner.start_replay(self, start):
                self._todo.extend(self.tracker.replay_failed())

    def announce(self) -> None:
        """Show the state before the first connection."""
        self._set_state(SetState(self.tracker.state, self.tracker.reason))

    def forget(self) -> None:
        """Make the sink forget what an earlier feed brought: it will come again, from 0."""
        self.begin_anew("not connected again yet")

    def connected(self) -> None:
        """The connection stands."""
        self.carry_out(self.tracker.connected())

    def disconnected(self) -> None:
        """The connection is gone; questions that waited for it are dropped."""
        self.stop_replay()
        self._ask = None
        self._todo = deque(output for output in self._todo if not isinstance(output, AskReplay))
        self.carry_out(self.tracker.disconnected())

    def fall_silent(self) -> None:
        """Ask whether the last batch was lost, if there is a replay endpoint to ask."""
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
            failures=self._failures,
            is_rebuilt=self._is_rebuilt,
            applied_at=self._applied_at,
            lag_s=self._lag_s,
        )

    def _note_ask(self, output: AskReplay) -> None:
        """Ask after the other outputs are carried out: the new state is among them."""
        self._ask = output.start

    def _reset(self, output: Reset) -> None:
        self._cleared = -1  # The engine has restarted since.
        self._sink.reset(self.pod, dp_rank=self.rank)

    def _lose(self, output: Lose) -> None:
        self._sink.lose(self.pod, dp_rank=self.rank)

    def _set_state(self, output: SetState) -> None:
        self._sink.set_state(self.pod, output.state, dp_rank=self.rank, reason=output.reason)
        self._is_rebuilt |= output.state in _KNOWN


NewFeed: TypeAlias = Callable[..., RankFeed]
"""Makes a feed; its arguments are those of `RankFeed`."""

_ACTIONS: Final[Mapping[type[Effect], Callable[[RankFeed, Any], None]]] = {
    AskReplay: RankFeed._note_ask,
    Reset: RankFeed._reset,
    Lose: RankFeed._lose,
    SetState: RankFeed._set_state,
}
