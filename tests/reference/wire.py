"""The obvious model of the decoder: unpack everything with a library, then look at it.

`decode_batch` returns the very tuples of `kvbraid._native.decode_batch`. It shares no code and no
table with the package.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgpack  # type: ignore[import-untyped]

Found: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[object], object]

KINDS = {
    *("full_attention", "mla_attention", "sink_full_attention", "sliding_window"),
    *("sliding_window_mla", "chunked_local_attention", "mamba", "encoder_only_attention"),
    *("cross_attention", "unknown"),
}
MEDIA = {
    "GPU": ("gpu",),
    "CPU": ("cpu", "cpu_pinned", "cpu_tier1", "cpu_tier2", "host", "host_pinned"),
    "STORAGE": ("storage", "disk", "external", "shared_storage", "object_store"),
}
REMOVED = ("block_hashes", "medium", "group_idx")
STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name or metadata", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    "kv_cache_spec_sliding_window",
)
POSITIONS: dict[str, tuple[str, ...]] = {
    "BlockStored": STORED,
    "BlockRemoved": REMOVED,
    "AllBlocksCleared": (),
}
COMPONENTS = ("full", "swa", "mamba")
NAMES: dict[str, set[str]] = {
    "BlockStored": {*STORED[:6], *STORED[7:], "lora_name", "locality", "ownership"}
    | {"lookahead_token_ids", "cache_salt", "type", "component_type", "component_types"}
    | {"mm_keys"},
    "BlockRemoved": {*REMOVED, "locality", "ownership", "type", "component_type"},
    "AllBlocksCleared": set(),
}
REQUIRED: dict[str, set[str]] = {
    "BlockStored": {"block_hashes", "token_ids", "block_size"},
    "BlockRemoved": {"block_hashes"},
    "AllBlocksCleared": set(),
}


class RefusedError(Exception):
    """Carries the reason."""


class Pairs(list[tuple[object, object]]):
    """A map, with its order and repeated keys."""


def decode_batch(payload: bytes) -> tuple[object, ...]:
    unpacker = msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        object_pairs_hook=Pairs,
        max_buffer_size=2**31 - 1,
    )
    unpacker.feed(payload)
    state: Found = {"ts": None, "dp_rank": None, "events": [], "refused": [], "index": None}
    try:
        _read(unpacker, state)
        if unpacker.tell() < len(payload):
            state["refused"].append(("trailing_bytes", None))
    except (msgpack.exceptions.UnpackException, ValueError):
        state["refused"].append(("malformed_batch", state["index"]))
    return state["ts"], state["dp_rank"], state["events"], state["refused"]


def _read(unpacker: Any, state: Found) -> None:  # noqa: ANN401 - the library has no types
    num_fields = unpacker.read_array_header()
    if num_fields < 2:
        raise ValueError
    ts = unpacker.unpack()
    if ts is None or type(ts) in (int, float):
        state["ts"] = None if ts is None else float(ts)
    else:
        state["refused"].append(("bad_timestamp", None))
    for index in range(unpacker.read_array_header()):
        state["index"] = index
        value = unpacker.unpack()
        try:
            event, has_unknown_kind = _event(value)
        except RefusedError as refused:
            state["refused"].append((str(refused), index))
            continue
        state["events"].append(event)
        if has_unknown_kind:
            state["refused"].append(("unknown_kind", index))
    state["index"] = None
    if num_fields > 2:
        rank = unpacker.unpack()
        if rank is None or _is_int(rank, 0, 4095):
            state["dp_rank"] = rank
        else:
            state["refused"].append(("bad_rank", None))
    for _ in range(3, num_fields):
        unpacker.unpack()


def _event(value: object) -> tuple[tuple[object, ...], bool]:
    found: Found = {}
    if isinstance(value, Pairs):
        tag = _tag(next((v for k, v in value if k == "type"), None))
        _collect_named(tag, value, found)
    elif isinstance(value, list) and value:
        tag = _tag(value[0])
        items = value[1:]
        at = POSITIONS[tag].index("medium") if tag != "AllBlocksCleared" else len(items)
        if at < len(items) and isinstance(items[at], str) and items[at] in COMPONENTS:
            found["component_type"] = items.pop(at)
        for name, item in zip(POSITIONS[tag], items, strict=False):
            if name == "lora_name or metadata" and isinstance(item, Pairs):
                _collect_named(tag, item, found)
            else:
                _collect(name.removesuffix(" or metadata"), item, found)
    else:
        raise RefusedError("malformed_event")
    if not REQUIRED[tag] <= set(found):
        raise RefusedError("malformed_event")
    get = found.get
    if tag == "AllBlocksCleared":
        return (tag,), False
    medium = get("medium") or "GPU"
    remote = get("locality") == "REMOTE"
    if tag == "BlockRemoved":
        return (
            tag,
            get("block_hashes"),
            medium,
            get("group_idx"),
            remote,
            get("ownership"),
            get("component_type"),
        ), False
    return _stored(found, medium, remote)


def _stored(found: Found, medium: object, remote: bool) -> tuple[tuple[object, ...], bool]:
    get = found.get
    hashes, lora = found["block_hashes"], get("lora_name")
    tokens, seconds = found["token_ids"]
    extra_keys = _extra_keys(get("extra_keys"), len(hashes), lora)
    if get("mm_keys") is not None:
        extra_keys = _mm_keys(get("mm_keys"), len(hashes), is_alone=get("extra_keys") is None)
    lookahead = _lookahead(get("lookahead_token_ids"), hashes, seconds, found["block_size"])
    kind = get("kv_cache_spec_kind")
    known = kind if kind is None or kind in KINDS else "unknown"
    what = ("BlockStored", hashes, get("parent_block_hash"), tokens, get("block_size"))
    where = (get("lora_id"), medium, lora, extra_keys, get("group_idx"), known)
    window = get("kv_cache_spec_sliding_window")
    rest = (window, remote, get("ownership"), lookahead, get("cache_salt"))
    components = (get("component_type"), get("component_types"))
    return what + where + rest + components, kind != known


def _tag(value: object) -> str:
    if not isinstance(value, str):
        raise RefusedError("malformed_event")
    if value not in POSITIONS:
        raise RefusedError("unknown_event")
    return value


def _collect_named(tag: str, pairs: Pairs, found: Found) -> None:
    for name, item in pairs:
        if isinstance(name, str) and name in NAMES[tag]:
            _collect(name, item, found)


def _collect(name: str, item: object, found: Found) -> None:
    if name in found:
        raise RefusedError("malformed_event")
    found[name] = READERS[name](item)


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _array(value: object, reason: str = "malformed_event") -> list[Any]:
    if not isinstance(value, list) or isinstance(value, Pairs):
        raise RefusedError(reason)
    return value


def _int(low: int, high: int) -> Reader:
    def read(value: object) -> object:
        if not _is_int(value, low, high):
            raise RefusedError("malformed_event")
        return value

    return read


def _or_none(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RefusedError("malformed_event")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError("bad_text") from None
    return value


def _name(value: object) -> str | None:
    return _text(value) or None


def _medium(value: object) -> str:
    lower = _text(value).encode().lower().decode()
    return next((name for name, words in MEDIA.items() if lower in words), lower)


def _locality(value: object) -> str:
    if not isinstance(value, str) or value.upper() not in ("LOCAL", "REMOTE"):
        raise RefusedError("malformed_event")
    return value.upper()


def _group(value: object) -> object:
    if type(value) is int and value < 0:
        raise RefusedError("negative_group")
    if type(value) is int and value > 255:
        raise RefusedError("large_group")
    return _int(0, 255)(value)


def _hash(value: object) -> int:
    if type(value) is int:
        return value % 2**64
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise RefusedError("bad_hash")


def _token(value: object) -> object:
    if isinstance(value, str) and value:
        return _text(value)
    if not _is_int(value, 0, 2**64 - 1):
        raise RefusedError("bad_tokens")
    return value


def _tokens(value: object) -> tuple[list[object], list[object]]:
    items = [] if value is None else _array(value)
    if not items or not isinstance(items[0], list) or isinstance(items[0], Pairs):
        return [_token(item) for item in items], []
    for item in items:
        if len(_array(item, "bad_tokens")) != 2:
            raise RefusedError("bad_tokens")
        _token(item[0])
        _token(item[1])
    return [item[0] for item in items], [item[1] for item in items]


def _extra_keys(value: object, num_blocks: int, lora: str | None) -> object:
    if value is None:
        return None
    entries = _array(value, "bad_extra_keys")
    if len(entries) != num_blocks:
        raise RefusedError("bad_extra_keys")
    blocks = []
    for entry in entries:
        keys = [] if entry is None else entry
        if not isinstance(keys, list) or isinstance(keys, Pairs):
            keys = [keys]
        if lora is not None and keys[:1] == [lora]:
            keys = keys[1:]
        blocks.append([_extra_key(key) for key in keys] or None)
    return blocks


def _mm_keys(value: object, num_blocks: int, *, is_alone: bool) -> object:
    entries = _array(value, "bad_extra_keys")
    if not is_alone or len(entries) != num_blocks:
        raise RefusedError("bad_extra_keys")
    blocks = [
        [_mm_key(key) for key in _array(entry, "bad_extra_keys")] or None for entry in entries
    ]
    return blocks if any(blocks) else None


def _mm_key(key: object) -> bytes:
    if not isinstance(key, Pairs):
        raise RefusedError("bad_extra_keys")
    digest, offset = b"", None
    for name, value in key:
        if not isinstance(name, str):
            raise RefusedError("bad_extra_keys")
        if name == "hash" and not digest:
            if not isinstance(value, str):
                raise RefusedError("bad_extra_keys")
            digest = _text(value).encode()
        elif name == "start_offset":
            if not _is_int(value, 0, 2**32 - 1):
                raise RefusedError("bad_extra_keys")
            offset = int(str(value))
    if not digest or offset is None:
        raise RefusedError("bad_extra_keys")
    return digest + offset.to_bytes(4, "big")


def _extra_key(key: object) -> object:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return _text(key)
    item = _array(key, "bad_extra_keys")
    if len(item) != 2:
        raise RefusedError("bad_extra_keys")
    name, offset = item
    if not isinstance(name, str):
        raise RefusedError("bad_extra_keys")
    _text(name)
    if not _is_int(offset, -(2**63), 2**63 - 1):
        raise RefusedError("bad_extra_keys")
    return (name, offset)


def _lookahead(value: object, hashes: list[int], seconds: list[object], block_size: int) -> object:
    if value is not None:
        entries = _array(value, "bad_lookahead")
        if len(entries) != len(hashes):
            raise RefusedError("bad_lookahead")
        lists = [[_token(t) for t in _array(entry, "bad_lookahead")] for entry in entries]
        return lists or None
    if not seconds:
        return None
    if block_size == 0 or len(seconds) != len(hashes) * block_size:
        raise RefusedError("bad_lookahead")
    return [[token] for token in seconds[block_size - 1 :: block_size]]


def _component(value: object) -> str:
    if not isinstance(value, str):
        raise RefusedError("malformed_event")
    if value not in COMPONENTS:
        raise RefusedError("unknown_component")
    return value


def _components(value: object) -> list[str]:
    named = [_component(item) for item in _array(value)]
    return [name for name in COMPONENTS if name in named]


READERS: dict[str, Reader] = {
    "type": lambda value: value,
    "block_hashes": lambda value: [_hash(item) for item in _array(value)],
    "parent_block_hash": _or_none(_hash),
    "token_ids": _tokens,
    "block_size": _int(0, 2**32 - 1),
    "lora_id": _or_none(_int(-(2**63), 2**63 - 1)),
    "medium": lambda value: None if not value and value in (None, "") else _medium(value),
    "lora_name": _or_none(_name),
    "extra_keys": lambda value: value,
    "mm_keys": lambda value: value,
    "group_idx": _or_none(_group),
    "kv_cache_spec_kind": _or_none(_text),
    "kv_cache_spec_sliding_window": _or_none(_int(0, 2**32 - 1)),
    "locality": _or_none(_locality),
    "ownership": _or_none(_name),
    "lookahead_token_ids": lambda value: value,
    "cache_salt": _or_none(_name),
    "component_type": _or_none(_component),
    "component_types": _or_none(_components),
}
