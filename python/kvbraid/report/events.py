"""Events as `kvbraid tail` shows them: one line each, with no text that could move the terminal's
lines."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kvbraid.errors import counted, printable
from kvbraid.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
)

_NO_TIME: Final = "--:--:--.---"


def event_lines(source: str, seq: int, batch: EventBatch) -> list[str]:
    """Return one line per event and refusal of a batch."""
    start = f"{_when(batch.ts)} {source} #{seq}"
    lines = [f"{start} {_EVENT_TEXT[type(event)](event)}" for event in batch.events]
    for refusal in batch.refused:
        place = "" if refusal.event_index is None else f" (event {refusal.event_index})"
        lines.append(f"{start} refused {refusal.reason}{place}")
    return [printable(line) for line in lines or [f"{start} empty"]]


def _when(ts: float | None) -> str:
    """Return the time of day in UTC, or dashes for an impossible time."""
    if ts is None:
        return _NO_TIME
    try:
        return f"{datetime.fromtimestamp(ts, UTC):%H:%M:%S.%f}"[:12]
    except (OverflowError, ValueError, OSError):
        return _NO_TIME


def _stored(event: BlockStored) -> str:
    kind = event.kv_cache_spec_kind or "kind unknown"
    window = event.kv_cache_spec_sliding_window
    parent = event.parent_block_hash
    parts = [
        f"stored  {group_name(event.group_idx)} {kind}{f'/{window}' if window else ''}",
        f"{counted(len(event.block_hashes), 'block')} of {event.block_size}",
        counted(len(event.token_ids), "token"),
        "root" if parent is None else f"after {parent:016x}",
        event.medium,
        _hashes(event.block_hashes),
    ]
    parts += [f"lora {event.lora_name}"] if event.lora_name else []
    return "  ".join(parts)


def _removed(event: BlockRemoved) -> str:
    count = counted(len(event.block_hashes), "block")
    where = f"{group_name(event.group_idx)}  {count}  {event.medium}"
    return f"removed {where}  {_hashes(event.block_hashes)}"


def _cleared(event: AllBlocksCleared) -> str:
    del event
    return "cleared all blocks"


_EVENT_TEXT: Final[Mapping[type[Event], Callable[[Any], str]]] = {
    BlockStored: _stored,
    BlockRemoved: _removed,
    AllBlocksCleared: _cleared,
}


def _hashes(hashes: tuple[int, ...]) -> str:
    shown = " ".join(f"{value:016x}" for value in hashes[:2])
    return shown + (f" +{len(hashes) - 2}" if len(hashes) > 2 else "")


def group_name(group: int | None, number: int | None = None) -> str:
    """Return a group's name: its index, or its position in the list if events name no index."""
    shown = group if group is not None else number
    return "g-" if shown is None else f"g{shown}"
