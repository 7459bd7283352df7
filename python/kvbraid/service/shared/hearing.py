"""What other replicas say: who is believed, and why not.

Invariant: what is refused changes nothing of what counts, and is counted by its reason. How much
is kept of anybody is bounded, whatever comes. Clocks of others are compared with nothing but
themselves: how late a message is follows from the one of the same process that was quickest, so
replicas may have any time. Nothing here reads a clock or opens a socket.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from kvbraid.policy.replica_loads import MOST_REPLICAS
from kvbraid.service.shared.messages import (
    LoadMessage,
    MessageKind,
    SentMessage,
    WrongMessageError,
    from_bytes,
)

MOST_PER_SECOND: Final = 1000
MOST_BYTES_PER_SECOND: Final = 8 << 20
"""Of one name: messages, and their bytes, which take some hundredths of that time to score."""

MOST_NAME: Final = 63
MOST_PROCESSES: Final = 4
"""Of one name, that are remembered: one, and those that it was before it was started again."""

DRIFT: Final = 1e-3
"""By how much two clocks may run apart, as a share; crystals do by a tenth of it at most."""

KEPT_S: Final = 60.0
"""So long a name is remembered that says nothing any more."""

Heard: TypeAlias = Literal[
    "taken",
    "echo",
    "foreign",
    "too_fast",
    "too_long",
    "malformed",
    "old",
    "late",
    "too_many",
    "unwanted",
]
"""What can become of a message; all but the first refuse it. `unwanted` is of no pod here, say."""

ReplicaMessage: TypeAlias = LoadMessage | SentMessage

TakeMessage: TypeAlias = Callable[[str, ReplicaMessage, float], bool]
"""Takes what a process has said, at a time; says whether it counts."""


@dataclass(slots=True)
class _ReplicaProcess:
    """One process of a name: its last message, and the least that one of them took to come.

    `offset` is our time of hearing minus its time of saying; it grows by what clocks may drift.
    """

    number: int
    heard_at: float
    offset: float


@dataclass(slots=True)
class _NamedReplica:
    """Who speaks under one name: processes by their run, the latest last, and how fast."""

    second: float
    messages: int = 0  # In this second, and their bytes.
    num_bytes: int = 0
    processes: dict[str, _ReplicaProcess] = field(default_factory=dict)


class Hearing:
    """Messages of other replicas, whose subjects are `prefix`, a kind, and a name.

    `name` and `run` are those of this process. Two processes of one name count each for itself. A
    message may come up to `too_late_s` later than the quickest one of its process.

    Attributes:
        counts: What has become of messages.
    """

    def __init__(
        self, prefix: str, name: str, run: str, take: TakeMessage, *, too_late_s: float = 1.0
    ) -> None:
        self._kinds: dict[str, MessageKind] = {
            f"{prefix}.{each}": each for each in get_args(MessageKind)
        }
        self._name = name
        self._run = run
        self._take = take
        self._too_late_s = too_late_s
        self._names: dict[str, _NamedReplica] = {}
        self._twice: dict[str, float] = {}  # Names of two processes, and when that was seen last.
        self.counts: Counter[str] = Counter(dict.fromkeys(get_args(Heard), 0))

    def hear(self, subject: str, payload: bytes, now: float) -> Heard:
        """TakeMessage a message, and say what has become of it."""
        before, _, name = subject.rpartition(".")
        kind = self._kinds.get(before)
        is_ours = kind is not None and 0 < len(name) <= MOST_NAME
        heard = self._of(kind, name, payload, now) if kind and is_ours else "foreign"
        self.counts[heard] += 1
        return heard

    def twice(self, now: float) -> list[str]:
        """Return the names under which two processes have spoken within KEPT_S."""
        self._forget(now)
        return sorted(self._twice)

    def _of(self, kind: MessageKind, name: str, payload: bytes, now: float) -> Heard:
        named = self._named(name, now)
        if named is None:
            return "too_many"
        if _is_too_fast(named, len(payload), now):
            return "too_fast"
        try:
            message = from_bytes(kind, payload)
        except WrongMessageError as error:
            return error.why
        if message.run == self._run:
            return "echo"
        return self._process(name, named, message, now)

    def _process(
        self, name: str, named: _NamedReplica, message: ReplicaMessage, now: float
    ) -> Heard:
        offset, process = now - message.at_s, named.processes.get(message.run)
        if process is None:
            if not _make_room(named, now, self._too_late_s):
                return "too_many"
            process = named.processes[message.run] = _ReplicaProcess(-1, now, offset)
        if message.number <= process.number:
            return "old"
        if name == self._name or next(reversed(named.processes)) != message.run:
            self._twice[name] = now  # A later one has begun, and this one goes on.
        least = min(process.offset + (now - process.heard_at) * DRIFT, offset)
        process.number, process.heard_at, process.offset = message.number, now, least
        if offset - least > self._too_late_s:
            return "late"
        is_taken = self._take(f"{name}/{message.run}", message, now)
        return "taken" if is_taken else "unwanted"

    def _named(self, name: str, now: float) -> _NamedReplica | None:
        if name not in self._names:
            self._forget(now)
            if len(self._names) >= MOST_REPLICAS:
                return None
            self._names[name] = _NamedReplica(now)
        return self._names[name]

    def _forget(self, now: float) -> None:
        """Forget who has said nothing for long."""
        self._twice = {name: at for name, at in self._twice.items() if now - at < KEPT_S}
        self._names = {n: it for n, it in self._names.items() if now - it.second < KEPT_S}

    def check_integrity(self) -> None:
        """Assert that nothing grows without bounds. For tests: it walks everything."""
        assert len(self._names) <= MOST_REPLICAS
        assert len(self._twice) <= MOST_REPLICAS * 2
        assert all(len(named.processes) <= MOST_PROCESSES for named in self._names.values())
        assert set(self.counts) == set(get_args(Heard))


def _is_too_fast(named: _NamedReplica, num_bytes: int, now: float) -> bool:
    if not 0 <= now - named.second < 1:
        named.second, named.messages, named.num_bytes = now, 0, 0
    named.messages += 1
    named.num_bytes += num_bytes
    return named.messages > MOST_PER_SECOND or named.num_bytes > MOST_BYTES_PER_SECOND


def _make_room(named: _NamedReplica, now: float, silent_s: float) -> bool:
    """Forget the process that was silent for longest, if it must be and was silent at all."""
    if len(named.processes) >= MOST_PROCESSES:
        run = min(named.processes, key=lambda each: named.processes[each].heard_at)
        if now - named.processes[run].heard_at < silent_s:
            return False
        del named.processes[run]
    return True
