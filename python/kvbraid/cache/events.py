"""Events that a cache recorded: held as bytes, decoded into structures on demand."""

from dataclasses import dataclass

from kvbraid._native import encode_events
from kvbraid.events.model import Event
from kvbraid.events.wire import decode


@dataclass(frozen=True, slots=True)
class Events:
    """The events since the last call, in order. `encoded` has one map per event."""

    encoded: bytes
    num_events: int

    def __len__(self) -> int:
        return self.num_events

    def to_bytes(self, ts: float, dp_rank: int | None = None) -> bytes:
        """Return the payload that an engine publishes. `ts`: seconds since the epoch."""
        return encode_events(self.encoded, self.num_events, ts, dp_rank)

    def structs(self) -> tuple[Event, ...]:
        """Return the events as structures, decoded from the bytes."""
        batch = decode(self.to_bytes(0.0))
        assert not batch.refused, batch.refused
        return batch.events
