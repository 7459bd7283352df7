"""Sequence tracking for one publisher (a pod's data-parallel rank): what came, what is missing.

This is a state table without sockets or clock. Each input returns the outputs that the caller must
carry out in order. Invariant: while the last reported state is EXACT, the batches delivered since
the last Reset are the engine's own, from number 0 (or from a clear) on, in order, each once, up to
the highest number heard of. If that cannot be proven, the state says so.

    connected ──► REPLAYING ──ended──► LIVE ──silence──► POLLING
                      ▲  live is held    │ ▲                │ live goes on
                      └──────gap─────────┘ └──ended/failed──┘

An engine announces neither its restart nor its epoch. Two things prove a restart: a number that
was already used comes with another payload, or the engine no longer knows the batch that was
delivered last. So no replay is trusted until the engine has shown that batch too. This module
never decodes a payload.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from kvbraid.events.digest import RANDOM, Digests
from kvbraid.events.held import HeldBatches
from kvbraid.ids import PodState

_NOT_CONNECTED: Final = "not connected"
_UNTOLD: Final = "reconnected, and no replay told what was missed"


class Deliver(NamedTuple):
    """Apply this batch now."""

    seq: int
    payload: bytes


class AskReplay(NamedTuple):
    """Ask the engine for its buffered batches from `start` on; replaces a replay under way."""

    start: int


class Reset(NamedTuple):
    """The engine restarted: forget what this rank held."""


class Lose(NamedTuple):
    """These numbers are lost for good; `last` None: nobody knows how many."""

    first: int
    last: int | None


class SetState(NamedTuple):
    """The state to show from now on."""

    state: PodState
    reason: str


Effect: TypeAlias = Deliver | AskReplay | Reset | Lose | SetState


@dataclass(slots=True)
class SequenceCounts:
    """Counts of what was not simply the next number; all but `lost` count messages."""

    duplicates: int = 0
    restarts: int = 0
    lost: int = 0
    overflowed: int = 0  # Not held because the buffer was full; asked for again later.
    replays: int = 0


class Phase(Enum):
    """Rows of the table."""

    DOWN = auto()  # No connection; a batch proves that there is one.
    REPLAYING = auto()  # Something may be missing: asked for it, live batches are held.
    LIVE = auto()  # Every number up to `last` is settled.
    POLLING = auto()  # As LIVE, and a silent engine was asked whether it has more.


@dataclass(slots=True)
class _Ask:
    """A replay under way: from `start`, because of the hole below `until` (None: no hole yet)."""

    start: int
    until: int | None
    lowest: int | None = None  # The lowest number answered so far.


class _Proof(NamedTuple):
    """The batch delivered last before a replay; an engine that does not know it has restarted."""

    seq: int
    digest: int


class Settled(NamedTuple):
    """What a tracker has settled, from which one in another process can go on.

    `last` and `digest` are those of the batch delivered last (None: it was lost), `lost_to` the
    highest number lost; `is_complete` says that nothing is missing up to `last`, `why` why not.
    """

    last: int
    digest: int | None
    lost_to: int
    is_complete: bool
    why: str


class SequenceTracker:
    """Numbers of one publisher; not thread-safe, one owner feeds it.

    Args:
        hold_limit_bytes: Bytes that held batches and their overhead may take (held.py). Further
            live batches are counted as overflowed, and asked for again after the replay.
        remembered: How many of the latest payloads have their digests kept, to tell duplicates
            from restarts.
        digests: Of payloads; those of another process have to be under the same key.

    Attributes:
        last: The highest settled number (delivered or lost), -1 before the first.
        is_strict: Deliver nothing of an engine before it has shown that it is the same. Else it
            is delivered and a Reset follows, which a copy for others could not take back.
    """

    def __init__(
        self,
        *,
        hold_limit_bytes: int = 32 << 20,
        remembered: int = 1024,
        digests: Digests = RANDOM,
    ) -> None:
        self.counts = SequenceCounts()
        self.last = -1
        self.is_strict = False
        self._hold_limit_bytes = hold_limit_bytes
        self._remembered = remembered
        self._digest_of, self._digests_of = digests.of, digests.of_each
        self._phase = Phase.DOWN
        self._row = TABLE[Phase.DOWN]
        self._known_to = -1  # A failed feed had heard of it: it must come again, or is lost.
        self._down = _NOT_CONNECTED  # Why there is no connection.
        self._said = SetState(PodState.STALE, self._down)
        self._out: list[Effect] = []
        self._last_digest: int | None = None  # None: `last` was lost, or nothing came yet.
        self._forget()

    @property
    def state(self) -> PodState:
        """The state last reported (STALE before the first connection)."""
        return self._said.state

    @property
    def reason(self) -> str:
        """Why the state is not EXACT; empty when it is."""
        return self._said.reason

    def progress(self) -> Settled | None:
        """Return what is settled; None while it is in doubt whose batches the last ones are."""
        if self._proof is not None:
            return None
        return Settled(self.last, self._last_digest, self._lost_to, self._is_complete, self._why)

    def go_on(self, progress: Settled) -> None:
        """Begin with what another tracker had settled, before any input.

        The engine has to show the batch delivered last, as after any other connection.
        """
        assert (self.last, self._phase) == (-1, Phase.DOWN), "a tracker that has begun"
        self.last = self._seen = progress.last
        self._last_digest, self._lost_to = progress.digest, progress.lost_to
        self._is_complete, self._why = progress.is_complete, progress.why

    # Inputs. Each returns the outputs, to be carried out in this order.

    def connected(self) -> list[Effect]:
        """The connection stands (again)."""
        self._row.connected(self)
        return self._take_out()

    def disconnected(self) -> list[Effect]:
        """The connection is gone; the caller drops its replay, and what it had not read yet."""
        self._row.disconnected(self)
        return self._take_out()

    def advance(self, first: int, payloads: Sequence[bytes]) -> bool:
        """Settle live batches of consecutive numbers if they are next and nothing is in doubt.

        This is a shortcut of `message` for nearly every batch. True: apply them now. False:
        nothing was done, so call `message` for each. There must be at least one batch.
        """
        if first != self.last + 1 or first == 0 or self._row.message is not _next:
            return False
        seqs, digests, num_slots = self._ring_seqs, self._ring_digests, self._remembered
        # As `_remember`, without the calls.
        for seq, digest in enumerate(self._digests_of(payloads), first):
            slot = seq % num_slots
            seqs[slot] = seq
            digests[slot] = self._last_digest = digest
        self.last = self._seen = first + len(payloads) - 1
        return True

    def message(self, seq: int, payload: bytes) -> list[Effect]:
        """A live batch arrived."""
        self._row.message(self, seq, payload)
        return self._take_out()

    def replayed(self, seq: int, payload: bytes) -> list[Effect]:
        """The replay under way answered with this batch."""
        self._row.replayed(self, seq, payload)
        return self._take_out()

    def replay_ended(self) -> list[Effect]:
        """The replay under way sent its end marker."""
        self._row.replay_ended(self)
        return self._take_out()

    def replay_failed(self) -> list[Effect]:
        """There is no replay endpoint, or it did not answer in time."""
        self._row.replay_failed(self)
        return self._take_out()

    def silence(self) -> list[Effect]:
        """Nothing came for a while: a lost last batch would not show otherwise."""
        self._row.silence(self)
        return self._take_out()

    def cleared(self, seq: int) -> list[Effect]:
        """The delivered batch `seq` cleared the cache: what was lost before no longer matters."""
        if seq > self._lost_to:
            self._mark_complete()
        return self._take_out()

    def restarted(self) -> list[Effect]:
        """The caller knows that the engine has restarted, whatever its numbers say."""
        self._restart()
        return self._take_out()

    def ran_out(self) -> list[Effect]:
        """A copy of what the engine has published ends: only the engine itself may have more.

        The engine must show a batch of the copy before anything of it counts, because it may have
        restarted since. If nothing is known to be missing, it is only polled.
        """
        if self._phase is Phase.REPLAYING:
            self._release()
            lowest = self._held.lowest()
            if lowest is not None:
                self._need_proof_of_held(lowest)
                self._start_replay(self.last + 1, lowest)
            elif self._seen > self.last:
                self._need_proof()
                self._start_replay(self.last + 1, self._seen + 1)
            elif self._proof is not None:
                self._start_replay(self._proof.seq)
            else:
                _poll(self)
        return self._take_out()

    def failed(self, why: str) -> list[Effect]:
        """What was delivered may be incomplete: know nothing, as before a connection."""
        self._known_to = max(self._known_to, self.last)
        self._forget()
        self._out.clear()
        self._out.append(Reset())
        self._down = why
        self._enter(Phase.DOWN)
        return self._take_out()

    def check_integrity(self) -> None:
        """Assert what must hold between any two inputs."""
        self._held.check_integrity()
        lowest = self._held.lowest()
        assert lowest is None or lowest > self.last, (self.last, lowest)
        assert (self._ask is not None) == (self._phase in {Phase.REPLAYING, Phase.POLLING})
        if self._phase is not Phase.REPLAYING:
            assert not self._held
            assert self._seen <= self.last
        assert not self._out

    # The parts of the actions.

    def _forget(self) -> None:
        """Know nothing, as at the start of an engine's life."""
        self.last = -1
        self._seen = -1  # The highest live number, also when it is held or overflowed.
        self._lost_to = -1
        self._is_complete = False
        self._why = "history before the connection is unknown"
        self._held = HeldBatches()
        # A ring by number: a dict that forgets its oldest entry costs many times as much.
        self._ring_seqs: list[int] = [-1] * self._remembered
        self._ring_digests: list[int] = [0] * self._remembered
        self._last_digest = None
        self._ask: _Ask | None = None
        self._proof: _Proof | None = None
        self._is_changed = False

    def _take_out(self) -> list[Effect]:
        if self._is_changed:
            self._is_changed = False
            said = self._now()
            if said != self._said:
                self._said = said
                self._out.append(said)
        out, self._out = self._out, []
        return out

    def _now(self) -> SetState:
        if self._phase is Phase.DOWN:
            return SetState(PodState.STALE, self._down)
        if self._phase is Phase.REPLAYING:
            assert self._ask is not None
            return SetState(PodState.REBUILDING, f"replay from {self._ask.start} is under way")
        if self._is_complete:
            return SetState(PodState.EXACT, "")
        return SetState(PodState.DEGRADED, self._why)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._row = TABLE[phase]
        self._is_changed = True

    def _start_replay(self, start: int, until: int | None = None) -> None:
        if self.is_strict and self._proof is not None:
            start = min(start, self._proof.seq)  # So the proof comes first.
        self._ask = _Ask(start, until)
        self.counts.replays += 1
        self._out.append(AskReplay(start))
        self._enter(Phase.REPLAYING)

    def _need_proof(self) -> None:
        """From this number on, answers may be another engine's; the earliest doubt counts."""
        if self._proof is None and self._last_digest is not None:
            self._proof = _Proof(self.last, self._last_digest)

    def _need_proof_of_held(self, seq: int) -> None:
        """Likewise, of a batch that is held: the engine must know it."""
        if self._proof is None:
            self._proof = _Proof(seq, self._digest_of(self._held[seq]))

    def _mark_complete(self) -> None:
        self._is_complete = True
        self._is_changed = True

    def _remember(self, seq: int, payload: bytes) -> None:
        slot = seq % self._remembered
        self._ring_seqs[slot] = seq
        self._ring_digests[slot] = self._digest_of(payload)

    def _deliver(self, seq: int, payload: bytes) -> None:
        self.last = seq
        self._last_digest = self._digest_of(payload)
        self._out.append(Deliver(seq, payload))
        if seq == 0:
            self._mark_complete()

    def _lose(self, last: int | None, why: str) -> None:
        self._out.append(Lose(self.last + 1, last))
        if last is not None:
            self.counts.lost += last - self.last
            self.last = last
            self._last_digest = None
        self._lost_to = self.last
        self._is_complete = False
        self._why = why
        self._is_changed = True
        self._proof = None  # Degraded either way: only a clear or a restart helps now.

    def _release(self) -> None:
        """Deliver what is held and next."""
        while (payload := self._held.take(self.last + 1)) is not None:
            self._deliver(self.last + 1, payload)

    def _restart(self) -> None:
        """The engine has restarted: forget, and ask for everything."""
        self.counts.restarts += 1
        self._known_to = -1
        self._out.append(Reset())
        self._forget()
        self._start_replay(0)

    def _is_same(self, seq: int, payload: bytes) -> bool | None:
        """Whether `seq` had this payload before; None when it is no longer remembered."""
        if seq in self._held:
            return self._held[seq] == payload
        slot = seq % self._remembered
        if self._ring_seqs[slot] != seq:
            return None
        return self._ring_digests[slot] == self._digest_of(payload)

    def _repeat(self, seq: int, payload: bytes) -> None:
        """A live number that is already used: a duplicate, or a restarted engine.

        A higher live number that the replay has already brought is the usual overlap of both
        streams. A lower one must be proven to be a duplicate.
        """
        same = self._is_same(seq, payload)
        if same or (same is None and seq > self._seen):
            self.counts.duplicates += 1
            self._seen = max(self._seen, seq)
        else:
            self._restart()
            self._seen = seq
            self._remember(seq, payload)
            self._held.hold(seq, payload)

    def _settle(self, *, may_ask: bool) -> None:
        """The replay is through: deliver what was held; ask for, or give up, what is missing."""
        if self.is_strict and self._proof is not None:
            if may_ask:
                self._restart()
                return
            self._lose(None, _UNTOLD)
        while self._held or self._seen > self.last:
            self._release()
            lowest = self._held.lowest()
            upto = self._seen + 1 if lowest is None else lowest
            if upto <= self.last + 1:
                continue
            if may_ask and self._is_askable(upto):
                self._start_replay(self.last + 1, upto)
                return
            self._lose(upto - 1, f"batches {self.last + 1} to {upto - 1} are lost")
        self._confirm(may_ask=may_ask)

    def _is_askable(self, upto: int) -> bool:
        """Whether another replay could still bring what is missing below `upto`.

        It cannot if this replay was asked for just that hole after the hole's upper end had been
        seen, or if its answers begin above the hole: then the engine's buffer is too short.
        """
        assert self._ask is not None
        start, until, lowest = self._ask.start, self._ask.until, self._ask.lowest
        return start != self.last + 1 or upto not in {until, lowest}

    def _confirm(self, *, may_ask: bool) -> None:
        """Nothing is missing now if the engine is still the same: ask it for the proof."""
        assert self._ask is not None
        if self._proof is None:
            if may_ask and self.last == -1:
                self._mark_complete()  # Asked from 0, and it has sent nothing yet.
            self._ask = None
            self._enter(Phase.LIVE)
        elif not may_ask:
            self._lose(None, _UNTOLD)
            self._confirm(may_ask=False)
        elif self._ask.start != self._proof.seq:
            self._start_replay(self._proof.seq)
        else:
            self._restart()


# Actions: what one row does with one input.


def _ignore(tracker: SequenceTracker) -> None:
    """Do nothing: the input tells nothing new in this phase."""


def _ignore_batch(tracker: SequenceTracker, seq: int, payload: bytes) -> None:
    """Drop an answer that nobody waits for."""


def _open(t: SequenceTracker) -> None:
    """Ask for what was missed: everything at first, from last + 1 at a reconnection."""
    t._need_proof()
    t._seen = max(t._seen, t._known_to)
    t._start_replay(t.last + 1)


def _open_and_hold(t: SequenceTracker, seq: int, payload: bytes) -> None:
    _open(t)
    _hold_live(t, seq, payload)


def _close(t: SequenceTracker) -> None:
    """Keep nothing undelivered: the next connection may lead to another engine."""
    for seq in t._held.numbers():
        t._ring_seqs[seq % t._remembered] = -1  # Its number may come again with other bytes.
    t._held.clear()
    t._seen = t.last
    t._ask = None
    t._down = _NOT_CONNECTED
    t._enter(Phase.DOWN)


def _hold_live(t: SequenceTracker, seq: int, payload: bytes) -> None:
    """Keep a live batch until replay is through."""
    if seq <= max(t._seen, t.last) or t._is_same(seq, payload) is not None:
        t._repeat(seq, payload)
        return
    t._seen = seq
    if t._held.num_bytes + t._held.cost(payload) > t._hold_limit_bytes:
        t.counts.overflowed += 1
        return
    t._remember(seq, payload)
    t._held.hold(seq, payload)


def _next(t: SequenceTracker, seq: int, payload: bytes) -> None:
    """Deliver the next live batch; a gap is asked for, a used number examined."""
    if seq == t.last + 1:
        t._seen = seq
        t._remember(seq, payload)
        t._deliver(seq, payload)
    elif seq <= t.last:
        t._repeat(seq, payload)
    else:
        t._need_proof()
        t._start_replay(t.last + 1, seq)
        _hold_live(t, seq, payload)


def _take(t: SequenceTracker, seq: int, payload: bytes) -> None:
    """Take one answer of a replay: deliver it if it is next, hold it if it came too early."""
    assert t._ask is not None
    t._ask.lowest = seq if t._ask.lowest is None else min(t._ask.lowest, seq)
    same = t._is_same(seq, payload)
    if t._proof is not None and seq == t._proof.seq:
        same = t._proof.digest == t._digest_of(payload)
        t._proof = None
    if same is False or (t.is_strict and t._proof is not None and seq > t._proof.seq):
        t._restart()
    elif seq <= t.last or same:
        t.counts.duplicates += 1
    else:
        t._remember(seq, payload)
        t._held.hold(seq, payload)
        first = t._held.lowest()
        if first is not None and first > t.last + 1 and t._held.num_bytes > t._hold_limit_bytes:
            t._lose(first - 1, f"batches {t.last + 1} to {first - 1} are lost")
        t._release()


def _take_polled(t: SequenceTracker, seq: int, payload: bytes) -> None:
    """A silent engine had more: from now on this is a replay like any other."""
    if seq > t.last:
        t._need_proof()
        if t.is_strict and t._proof is not None:
            t._start_replay(t._proof.seq)
            return
        t._enter(Phase.REPLAYING)
    _take(t, seq, payload)


def _finish(t: SequenceTracker) -> None:
    t._settle(may_ask=True)


def _give_up(t: SequenceTracker) -> None:
    """No end marker came: continue from where the replay stopped, if it got anywhere."""
    assert t._ask is not None
    if t.last >= t._ask.start and t._ask.lowest is not None:
        t._start_replay(t.last + 1)
    else:
        t._settle(may_ask=False)


def _poll(t: SequenceTracker) -> None:
    t._start_replay(t.last + 1)
    t._enter(Phase.POLLING)


def _finish_poll(t: SequenceTracker) -> None:
    t._confirm(may_ask=True)


def _give_up_poll(t: SequenceTracker) -> None:
    t._confirm(may_ask=False)


_Action: TypeAlias = Callable[[SequenceTracker], None]
_BatchAction: TypeAlias = Callable[[SequenceTracker, int, bytes], None]


class PhaseRow(NamedTuple):
    """What one phase does with each input."""

    connected: _Action
    disconnected: _Action
    message: _BatchAction
    replayed: _BatchAction
    replay_ended: _Action
    replay_failed: _Action
    silence: _Action


TABLE: Final[Mapping[Phase, PhaseRow]] = {
    Phase.DOWN: PhaseRow(
        connected=_open,
        disconnected=_ignore,
        message=_open_and_hold,
        replayed=_ignore_batch,
        replay_ended=_ignore,
        replay_failed=_ignore,
        silence=_ignore,
    ),
    Phase.REPLAYING: PhaseRow(
        connected=_ignore,
        disconnected=_close,
        message=_hold_live,
        replayed=_take,
        replay_ended=_finish,
        replay_failed=_give_up,
        silence=_ignore,
    ),
    Phase.LIVE: PhaseRow(
        connected=_ignore,
        disconnected=_close,
        message=_next,
        replayed=_ignore_batch,
        replay_ended=_ignore,
        replay_failed=_ignore,
        silence=_poll,
    ),
    Phase.POLLING: PhaseRow(
        connected=_ignore,
        disconnected=_close,
        message=_next,
        replayed=_take_polled,
        replay_ended=_finish_poll,
        replay_failed=_give_up_poll,
        silence=_ignore,
    ),
}
