"""Why an engine reused something else than its router had promised: shown by its own events.

A promise is made from the events that had arrived by then, and an engine decides later. So a
delivery is proven if an index that follows the engine's events says exactly this number at some
moment between the two.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId

from tests.vllm.live_engine import ENGINE, LiveModel
from tests.vllm.router.fleet import Turn
from tests.vllm.router.recording import Message

BEFORE: Final = 0.2
AFTER: Final = 0.5
"""Seconds by which a message may arrive earlier or later than a client sees its request."""


def unproven(model: LiveModel, messages: Sequence[Message], turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns of one pod whose delivery no state of its cache then explains."""
    pod, left = PodId("pod"), list(turns)
    index = FleetIndex()
    index.register(pod, model="tiny", topology=model.topology, engine=ENGINE)
    began = 0.0
    for arrived, payload in [*_events(messages), (float("inf"), b"")]:
        left = [
            turn
            for turn in left
            if arrived < turn.sent - BEFORE
            or began > turn.answered + AFTER
            or not _delivers(index, turn)
        ]
        if payload:
            index.apply(pod, payload)
        began = arrived
    return left


def _events(messages: Sequence[Message]) -> Iterator[tuple[float, bytes]]:
    """Yield a batch for each event: the requests of one step see what those before them did."""
    for message in messages:
        sent, events, *rest = msgspec.msgpack.decode(message.payload)
        for event in events:
            yield message.arrived, msgspec.msgpack.encode([sent, [event], *rest])


def _delivers(index: FleetIndex, turn: Turn) -> bool:
    (row,) = index.score(Request(model="tiny", token_ids=turn.prompt)).rows
    return row.lower == turn.ended.delivered == row.upper
