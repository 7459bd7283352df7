"""Capture directories: one engine's recorded life, read from disk.

A directory holds `config.json` (the engine's configuration), `events.bin` (every ZeroMQ message
as received: the number of frames, then for each frame its length, big-endian, and its bytes) and
`requests.jsonl` (one operation per line, with the prefix that the engine really reused). A capture
of SGLang with requests in flight also has `pieces.bin`: the same events in smaller batches, as
they came into being (for each its length, big-endian, and its bytes). These files may be
compressed (`.xz`). This module only reads; `replay` interprets a capture.
"""

import json
import lzma
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvbraid.engine import EngineProfile
from kvbraid.errors import CaptureError, InvalidValueError, TopologyError
from kvbraid.ids import Tier
from kvbraid.spec import EngineDialect, Topology
from kvbraid.spec_mapping import FIELDS, profile_from_mapping, topology_from_mapping

_SEQ_BYTES = 8
_OF_THE_RECORDING: Final = frozenset(
    {"layer_ids", "manager", "names", "page_bytes", "spec", "spec_block_size"}
)
"""Fields of a group that say which layers and classes of the engine were recorded."""


@dataclass(frozen=True, slots=True)
class Message:
    """One published message: topic, sequence number, MessagePack payload."""

    topic: bytes
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One request: its tokens, the events up to its look-up, and what the engine reused.

    When the engine looked the request up, `messages_seen` messages had been published, and
    `unpublished` events of the next message already existed (or, if the capture has pieces, the
    first `pieces_seen` of these). `reused_tokens` is the truth, and `outputs` are the tokens that
    the engine generated.
    """

    index: int
    token_ids: Sequence[int]
    cache_salt: str | None
    lora: str | None
    lora_path: str | None
    reused_tokens: int
    messages_seen: int
    unpublished: int
    order: tuple[int, int]
    outputs: Sequence[int] = ()
    pieces_seen: int = 0
    extra_key: str | None = None


@dataclass(frozen=True, slots=True)
class CacheReset:
    """The engine dropped its prefix cache; the event comes with the next message."""


Operation = Lookup | CacheReset


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One engine's life: its operations in the order of their lookups, and all its messages.

    `tiers` are those that the recorded reuse is of; None: of the engine's only one.
    """

    name: str
    topology: Topology
    engine: EngineProfile
    concurrency: int
    messages: Sequence[Message]
    operations: Sequence[Operation]
    pieces: Sequence[bytes] = ()
    tiers: Sequence[str] | None = None

    @property
    def loras(self) -> dict[str, str]:
        """Paths of the LoRA adapters, by name."""
        lookups = (op for op in self.operations if isinstance(op, Lookup))
        return {op.lora: op.lora_path for op in lookups if op.lora and op.lora_path}


def read_capture(directory: Path, settings: Mapping[str, object] | None = None) -> Capture:
    """Read a capture directory. `settings` replaces fields of its topology, by their names.

    Raises:
        CaptureError: The message names the file and what is wrong with it.
        TopologyError: A setting, or a field of `config.json`, that no topology can have.
        InvalidValueError: Likewise, a value that no engine can have. Both name the directory.
    """
    try:
        return _read(directory, settings or {})
    except (InvalidValueError, TopologyError) as error:
        raise type(error)(f"{directory}: {error}") from None


def described_topology(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `config.json` that describe the engine, and not the recording."""
    described = {name: config[name] for name in FIELDS if name in config}
    groups = described.get("groups")
    if isinstance(groups, list):
        described["groups"] = [
            {name: group[name] for name in group if name not in _OF_THE_RECORDING}
            if isinstance(group, dict)
            else group
            for group in groups
        ]
    return described


def _read(directory: Path, settings: Mapping[str, object]) -> Capture:
    config = _read_config(directory / "config.json")
    described = {**described_topology(config), **settings}
    concurrency = config.get("concurrency", 1)
    messages = list(_messages(directory))
    row = _ROWS[profile_from_mapping(described).dialect]
    operations = list(_operations(directory, row, concurrent=concurrency > 1))
    lookups = [op for op in operations if isinstance(op, Lookup)]
    if concurrency > 1:
        operations.sort(key=lambda op: op.order if isinstance(op, Lookup) else (0, 0))
    last = max((op.messages_seen for op in lookups), default=0)
    if last > len(messages):
        msg = f"{directory / 'events.bin'}: {len(messages)} messages, but a request saw {last}"
        raise CaptureError(msg)
    known = {
        "extra_keys": any(op.extra_key for op in lookups),
        "event_format": config.get("format"),
        "silent_pools_never_short": _is_never_short(config),
        "window_pool_tokens": config.get("size_swa"),
        "state_slots": config.get("mamba_slots"),
    }
    described = {name: value for name, value in known.items() if value} | described
    return Capture(
        name=directory.name,
        topology=topology_from_mapping(described),
        engine=profile_from_mapping(described),
        concurrency=concurrency,
        messages=messages,
        operations=operations,
        pieces=list(_pieces(directory)),
        tiers=_tiers(config),
    )


def _is_never_short(config: Mapping[str, Any]) -> bool:
    """Whether SGLang's pools of windows and states can hold all that the pages can have.

    A prompt has at most a state at each checkpoint, and a running request has one more.
    """
    full, windows, slots = (config.get(name) for name in ("size_full", "size_swa", "mamba_slots"))
    if full is None or (windows is None and slots is None):
        return False
    running = (config.get("args") or {}).get("max_running_requests", 0)
    states = full // config.get("alignment", 1) + running
    return (windows is None or windows >= full) and (slots is None or slots >= states)


def _tiers(config: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the tiers that lookups counted: SGLang's host tier counts like the GPU."""
    has_host = (config.get("args") or {}).get("enable_hierarchical_cache")
    return (Tier.GPU.value, Tier.CPU.value) if has_host else None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path}: {_reason(error)}") from error
    if not isinstance(config, dict):
        raise CaptureError(f"{path}: a {type(config).__name__}; expected one JSON object")
    return config


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _content(directory: Path, name: str) -> tuple[Path, bytes]:
    """The named file, or its compressed form."""
    path = directory / name
    packed = directory / f"{name}.xz"
    try:
        if packed.exists():
            return packed, lzma.decompress(packed.read_bytes())
        return path, path.read_bytes()
    except (OSError, lzma.LZMAError) as error:
        raise CaptureError(f"{packed if packed.exists() else path}: {_reason(error)}") from error


def _messages(directory: Path) -> Iterator[Message]:
    path, data = _content(directory, "events.bin")
    offset = 0
    while offset < len(data):
        frames = []
        try:
            (count,) = struct.unpack_from(">I", data, offset)
            offset += 4
            for _ in range(count):
                (length,) = struct.unpack_from(">I", data, offset)
                frames.append(data[offset + 4 : offset + 4 + length])
                offset += 4 + length
        except struct.error:
            offset = len(data) + 1
        if offset > len(data) or len(frames) != 3 or len(frames[1]) != _SEQ_BYTES:
            msg = f"{path}: broken message near byte {min(offset, len(data))} of {len(data)}"
            raise CaptureError(msg)
        topic, seq, payload = frames
        yield Message(topic, int.from_bytes(seq, "big"), payload)


def _pieces(directory: Path) -> Iterator[bytes]:
    if not any((directory / name).exists() for name in ("pieces.bin", "pieces.bin.xz")):
        return
    path, data = _content(directory, "pieces.bin")
    offset = 0
    while offset < len(data):
        start = offset + 4
        offset = start + int.from_bytes(data[offset:start], "big")
        if not start <= offset <= len(data):
            msg = f"{path}: broken piece near byte {min(start, len(data))} of {len(data)}"
            raise CaptureError(msg)
        yield data[start:offset]


def _operations(directory: Path, row: "_RowReader", *, concurrent: bool) -> Iterator[Operation]:
    path, data = _content(directory, "requests.jsonl")
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            fields = json.loads(line)
            if fields["op"] == "req":
                yield row(fields, concurrent)
            elif fields.get("ok"):
                yield CacheReset()
        except (ValueError, KeyError, TypeError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else error
            raise CaptureError(f"{path}: line {number}: {what}") from error


def _of_vllm(fields: Mapping[str, Any], concurrent: bool) -> Lookup:
    probe = fields.get("probe") or {}
    return Lookup(
        index=fields["i"],
        token_ids=fields["prompt"],
        cache_salt=fields.get("salt"),
        lora=fields.get("lora"),
        lora_path=fields.get("lora_path"),
        reused_tokens=probe["hit"] if concurrent else fields["num_cached_tokens"],
        messages_seen=probe["ev_seen"] if concurrent else fields["ev_before"],
        unpublished=probe.get("unpub", 0),
        order=(probe.get("step", 0), probe.get("same_step_pos", 0)),
        outputs=fields.get("output", ()),
    )


def _of_sglang(fields: Mapping[str, Any], concurrent: bool) -> Lookup:
    """Read a row with the last lookup before prefill, of which the truth is."""
    admitted = fields["admitted"]
    pieces = admitted.get("pieces", 0)
    return Lookup(
        index=fields["i"],
        token_ids=fields["prompt"],
        cache_salt=fields.get("salt"),
        lora=fields.get("lora"),
        lora_path=None,
        reused_tokens=admitted["hit"],
        messages_seen=admitted["ev_seen"] if concurrent else fields["ev_before"],
        unpublished=0,
        order=(admitted["step"], pieces),
        outputs=fields.get("output", ()),
        pieces_seen=pieces,
        extra_key=fields.get("extra_key"),
    )


_RowReader = Callable[[Mapping[str, Any], bool], Lookup]
_ROWS: Final[Mapping[EngineDialect, _RowReader]] = {
    EngineDialect.PURE: _of_vllm,
    EngineDialect.VLLM: _of_vllm,
    EngineDialect.SGLANG: _of_sglang,
}
"""How each engine's rows are read: the two recorders write down different things."""
