"""Recorded agent sessions, interleaved: a fixed number at a time, each at its recorded pace.

One line is one session: its agents, and requests in the order of their start. Ids are local to a
session and chained; sessions share nothing. A session's requests keep the recorded time between
them, except that an idle gap (nothing runs until the next request) is capped. When a session ends,
the next one of the file takes its place. These times only order the requests; nothing waits.

    recorded   |api|..... idle 300 s .....|api|.3 s.|api|
    played     |api|.. 60 s ..|api|.3 s.|api|
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kvbraid.errors import TraceError
from kvbraid.sim.traces.trace import Trace, TraceRequest

NUM_ACTIVE: Final = 40
MAX_IDLE_S: Final = 60.0

_ID_BITS: Final = 32  # The bits of an id within its session.


@dataclass(frozen=True, slots=True)
class SessionCall:
    """One request: its agent, its start (in seconds, gaps capped), and its ids.

    The ids are the first `keep` ids of the agent's previous request, followed by `runs` (start,
    length, ...).
    """

    agent: int
    start_s: float
    num_tokens: int
    keep: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One session: its calls, the time of its last answer, and how much capping took out."""

    calls: tuple[SessionCall, ...]
    end_s: float
    num_capped: int
    capped_s: float


def read(name: str, lines: Iterable[bytes], where: str) -> Trace:
    """Read all sessions of a file; exact duplicates are dropped and counted.

    Raises:
        TraceError: The message names the line and what is wrong with it.
    """
    sessions: dict[str, Session] = {}
    num_lines, sizes = 0, set()
    for number, line in enumerate(lines, start=1):
        num_lines = number
        try:
            fields = json.loads(line)
            sizes.add(int(fields["bs"]))
            content = json.dumps([fields["agents"], fields["reqs"]])
            if content not in sessions:
                sessions[content] = _session(fields["reqs"])
        except (ValueError, KeyError, TypeError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else error
            raise TraceError(f"{where}: line {number}: {what}") from error
    if len(sizes) != 1:
        msg = f"{where}: blocks of {sorted(sizes)} tokens; expected one size for all sessions"
        raise TraceError(msg)
    kept = tuple(sessions.values())
    return Trace(
        name=name,
        block_tokens=sizes.pop(),
        num_requests=sum(len(session.calls) for session in kept),
        play=lambda: interleave(kept, num_active=NUM_ACTIVE),
        notes={
            "sessions": len(kept),
            "duplicate sessions dropped": num_lines - len(kept),
            f"gaps capped at {MAX_IDLE_S:.0f} s": sum(session.num_capped for session in kept),
            "hours of gaps cut": round(sum(session.capped_s for session in kept) / 3600),
        },
    )


def interleave(sessions: Sequence[Session], *, num_active: int) -> Iterator[TraceRequest]:
    """Play sessions, `num_active` at a time; yield their requests by start time."""
    waiting = iter(enumerate(sessions))
    conversations = count()
    # Each entry: start, place among the active sessions, number of the call. The first two order
    # the heap.
    active: list[tuple[float, int, int]] = []
    playing: list[tuple[float, Session, Iterator[TraceRequest]]] = []

    def begin(place: int, now: float) -> None:
        for index, session in waiting:
            if session.calls:
                requests = _requests(session, index, conversations)
                playing[place : place + 1] = [(now, session, requests)]
                heapq.heappush(active, (now + session.calls[0].start_s, place, 0))
                return

    for place in range(num_active):
        begin(place, 0.0)
    while active:
        _, place, number = heapq.heappop(active)
        begun, session, requests = playing[place]
        yield next(requests)
        if number + 1 < len(session.calls):
            heapq.heappush(active, (begun + session.calls[number + 1].start_s, place, number + 1))
        else:
            begin(place, begun + session.end_s)


def _requests(session: Session, index: int, conversations: "count[int]") -> Iterator[TraceRequest]:
    """Expand the ids; the ids of different sessions never coincide."""
    base = index << _ID_BITS
    dialogues: dict[int, tuple[int, list[int]]] = {}  # Agent -> conversation and last ids.
    for call in session.calls:
        if call.agent not in dialogues:
            dialogues[call.agent] = next(conversations), []
        conversation, before = dialogues[call.agent]
        ids = before[: call.keep]
        for start, length in zip(call.runs[::2], call.runs[1::2], strict=True):
            ids += range(base + start, base + start + length)
        dialogues[call.agent] = conversation, ids
        yield TraceRequest(conversation, call.num_tokens, ids)


def _session(rows: Sequence[Any]) -> Session:
    """Move every request earlier by the time that capping has taken out before it."""
    calls: list[SessionCall] = []
    busy_until = shift = 0.0
    num_capped = 0
    for agent, start, num_tokens, _, api, _, _, _, keep, runs in rows:
        idle = start - busy_until
        if calls and idle > MAX_IDLE_S:
            num_capped += 1
            shift += idle - MAX_IDLE_S
        elif not calls:
            shift = start
        busy_until = max(busy_until, start + max(api, 0.0))
        calls.append(SessionCall(agent, start - shift, num_tokens, keep, tuple(runs)))
    first = rows[0][1] if rows else 0.0
    return Session(tuple(calls), busy_until - shift, num_capped, shift - first)
