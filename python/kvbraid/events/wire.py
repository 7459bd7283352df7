"""Bytes to events and back.

The native core decodes, and never raises for bad bytes. Encoding is plain Python for simulated
engines and tests: a value that a form cannot carry is refused, never left out.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec.msgpack

from kvbraid._native import decode_batch
from kvbraid.errors import InvalidValueError
from kvbraid.events.model import (
    AllBlocksCleared,
    BatchRefusal,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
)

WireForm: TypeAlias = Literal["map", "array", "sglang_map", "sglang_array"]
"""`map` and `array` are vLLM's newer and older spelling, the others SGLang's."""

_Fields: TypeAlias = dict[str, Any]


def decode(payload: bytes) -> EventBatch:
    """Read a payload in any form; unreadable parts are listed in `EventBatch.refused`.

    Media come back as `GPU`, `CPU`, `STORAGE` or a connector's own word in lower case.
    """
    ts, dp_rank, events, refused = decode_batch(payload)
    return EventBatch(
        ts=ts,
        dp_rank=dp_rank,
        events=tuple(_READERS[tag](*fields) for tag, *fields in events),
        refused=tuple(BatchRefusal(reason=reason, event_index=index) for reason, index in refused),
    )


_TIME: Final = struct.Struct(">cd")
_FLOAT64: Final = b"\xcb"
_ARRAY16: Final = 0xDC
"""The head of an array of more than 15 entries; that of a shorter one takes a single byte."""


def published_at(payload: bytes) -> float | None:
    """Return when an engine says that it made a batch, in seconds since 1970, decoding no events.

    None if it says nothing, or not as a number of 64 bits, as engines write it; 0.0 says nothing.
    """
    begin = 3 if payload[:1] == bytes([_ARRAY16]) else 1
    if len(payload) < begin + _TIME.size or (begin == 1 and payload[0] >> 4 != 0b1001):
        return None
    tag, ts = _TIME.unpack_from(payload, begin)
    return ts if tag == _FLOAT64 and 0 < ts < float("inf") else None


def encode_batch(
    events: EventBatch | Sequence[Event],
    *,
    ts: float | None = None,
    dp_rank: int | None = None,
    form: WireForm = "map",
) -> bytes:
    """Write events as an engine of this form publishes them.

    `ts` and `dp_rank` override those of an `EventBatch`; without either the time is 0.0. vLLM
    carries a salt among the extra keys of the first block, SGLang in a field of its own.

    Raises:
        InvalidValueError: A field that has a value and no place in this form.
    """
    batch = events if isinstance(events, EventBatch) else EventBatch(ts=None, events=tuple(events))
    time = next((value for value in (ts, batch.ts) if value is not None), 0.0)
    rank = batch.dp_rank if dp_rank is None else dp_rank
    write = _WRITERS[form]
    return msgspec.msgpack.encode([time, [write(event) for event in batch.events], rank])


# --- reading: the tuples of the native core --------------------------------------------------


def _read_stored(*values: Any) -> BlockStored:  # noqa: ANN401 - one value per field, in order
    fields: _Fields = dict(zip(BlockStored.__dataclass_fields__, values, strict=True))
    fields["locality"] = "REMOTE" if fields["locality"] else None
    for name in ("block_hashes", "token_ids", "component_types"):
        fields[name] = _tuple_or_none(fields[name])
    for name, entry in (("extra_keys", _tuple_or_none), ("lookahead_token_ids", tuple)):
        if fields[name] is not None:
            fields[name] = tuple(entry(value) for value in fields[name])
    return BlockStored(**fields)


_REMOVED: Final = [
    getattr(BlockRemoved, name).__set__ for name in BlockRemoved.__dataclass_fields__
]
_set_hashes, _set_medium, _set_group, _set_locality, *_SET_AS_THEY_ARE = _REMOVED


def _read_removed(
    hashes: list[int], medium: str, group: int | None, is_remote: bool, *others: str | None
) -> BlockRemoved:
    """Evictions come by the thousand. The constructor's checks would take most of the time and are
    left out: values that the core has decoded pass them by their types."""
    event = object.__new__(BlockRemoved)
    _set_hashes(event, tuple(hashes))
    _set_medium(event, medium)
    _set_group(event, group)
    _set_locality(event, "REMOTE" if is_remote else None)
    for set_field, value in zip(_SET_AS_THEY_ARE, others, strict=True):
        set_field(event, value)
    return event


def _tuple_or_none(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


_READERS: Final[Mapping[object, Callable[..., Event]]] = {
    "BlockStored": _read_stored,
    "BlockRemoved": _read_removed,
    "AllBlocksCleared": AllBlocksCleared,
}


# --- writing: one table of fields per form ---------------------------------------------------

_STORED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
)
_SPEC: Final = ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
_COMPONENTS: Final = ("component_type", "component_types")
_COPY: Final = ("locality", "ownership")
_FIELDS: Final[Mapping[tuple[WireForm, type], tuple[str, ...]]] = {
    ("map", BlockStored): (
        *_STORED,
        "lora_name",
        "extra_keys",
        *_SPEC,
        *_COPY,
        "lookahead_token_ids",
    ),
    ("map", BlockRemoved): ("block_hashes", "medium", "group_idx", *_COPY),
    ("array", BlockStored): (*_STORED, "lora_name", "extra_keys", *_SPEC),
    ("array", BlockRemoved): ("block_hashes", "medium", "group_idx"),
    ("sglang_map", BlockStored): (*_STORED, "cache_salt", "lora_name", *_COMPONENTS),
    ("sglang_map", BlockRemoved): ("block_hashes", "medium", "component_type"),
    ("sglang_array", BlockStored): (*_STORED[:-1], "component_type", "medium", "cache_salt"),
    ("sglang_array", BlockRemoved): ("block_hashes", "component_type", "medium"),
}
_ALWAYS: Final = frozenset((*_STORED, "lora_name"))
"""Fields that vLLM writes even if they are null."""


def _fields(event: Event, form: WireForm) -> _Fields:
    """The event's fields in the order of this form; refuse those that it has no place for."""
    names = _FIELDS.get((form, type(event)), ())
    for name, field in type(event).__dataclass_fields__.items():
        if name not in names and getattr(event, name) != field.default:
            msg = f"{name} = {getattr(event, name)!r} has no place in the form {form!r}"
            raise InvalidValueError(msg)
    return {name: getattr(event, name) for name in names}


def _with_lora_in_extra_keys(fields: _Fields) -> _Fields:
    """Repeat the LoRA name as the first extra key of each block, as vLLM does."""
    lora, keys = fields.get("lora_name"), fields.get("extra_keys")
    if lora is None or keys is None:
        return fields
    return {**fields, "extra_keys": [(lora, *(entry or ())) for entry in keys]}


def _write_map(event: Event) -> object:
    fields = _with_lora_in_extra_keys(_fields(event, "map"))
    kept = {name: value for name, value in fields.items() if value is not None or name in _ALWAYS}
    return {"type": type(event).__name__, **kept}


def _write_array(event: Event) -> object:
    fields = _with_lora_in_extra_keys(_fields(event, "array"))
    return [type(event).__name__, *fields.values()]


def _write_sglang_map(event: Event) -> object:
    fields = _signed(_fields(event, "sglang_map"))
    kept = {name: value for name, value in fields.items() if value is not None or name in _STORED}
    return {"type": type(event).__name__, **kept}


def _write_sglang_array(event: Event) -> object:
    fields = _signed(_fields(event, "sglang_array"))
    salt = fields.pop("cache_salt", None)
    if fields.get("component_type") is None:  # Only fleets with the flag on have the position.
        fields.pop("component_type", None)
    metadata = [] if salt is None else [{"cache_salt": salt}]
    return [type(event).__name__, *fields.values(), *metadata]


def _signed(fields: _Fields) -> _Fields:
    """Write hashes with a sign, as SGLang does."""

    def signed(value: int | None) -> int | None:
        return value - 2**64 if value is not None and value >= 2**63 else value

    changed = dict(fields)
    if "block_hashes" in fields:
        changed["block_hashes"] = [signed(value) for value in fields["block_hashes"]]
    if "parent_block_hash" in fields:
        changed["parent_block_hash"] = signed(fields["parent_block_hash"])
    return changed


_WRITERS: Final[Mapping[WireForm, Callable[[Event], object]]] = {
    "map": _write_map,
    "array": _write_array,
    "sglang_map": _write_sglang_map,
    "sglang_array": _write_sglang_array,
}
