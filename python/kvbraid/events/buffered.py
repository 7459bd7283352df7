"""TensorRT-LLM's buffered events: what a drain of `/kv_cache_events` returned, as usual payloads.

An engine keeps its events in a buffer, and whoever reads it empties it. The forms are those of
TensorRT-LLM's sources; none was recorded from a running engine.

Invariant: nothing is lost without a trace. Where a number is missing, or an event cannot be read,
the payload has an event that every decoder refuses. It ends the promises of its rank until the
engine starts again, because a buffer replays nothing.

There is no event for a clear, and a removal does not say on which tier the block was: which blocks
were moved is remembered. Blocks of adapters look like those of the base model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec

MAX_BODY_BYTES: Final = 32 << 20
"""A longer body is refused whole, like a frame of that length on ZeroMQ."""

MAX_MOVED: Final = 1 << 20
"""How many moved blocks of a rank are remembered; beyond, removals are sent for every tier."""

_MAX_GROUPS: Final = 256
_MAX_RANK: Final = 4095
_MEDIA: Final = ("GPU", "CPU", "STORAGE")
"""By cache level; further levels are storage too."""

_Map: TypeAlias = dict[str, Any]
_Hash: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Drained:
    """What one body held.

    Attributes:
        payloads: One for each rank that has events, to be applied or published in this order.
        refused: What belongs to no rank, by reason: `too_large` and `malformed_batch` are whole
            bodies, `malformed_event` and `bad_rank` single events.
    """

    payloads: tuple[bytes, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)


class BufferedReader:
    """Reads the bodies of one engine, in the order in which they were drained.

    It owns what later bodies need of each rank: the next number, the order in which windows
    appeared (that of the groups, if the engine numbers no layer groups), and the moved blocks.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def read(self, body: bytes) -> Drained:
        """Read one body; nothing is raised for bad bytes."""
        if len(body) > MAX_BODY_BYTES:
            return Drained(refused=Counter(too_large=1))
        try:
            rows = msgspec.json.decode(body, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return Drained(refused=Counter(malformed_batch=1))
        refused: Counter[str] = Counter()
        events: dict[int, list[msgspec.Raw]] = {}
        for row in rows:
            try:
                event = msgspec.json.decode(row, type=_Event)
            except (msgspec.DecodeError, RecursionError):
                refused["malformed_event"] += 1
                continue
            number = event.attention_dp_rank or 0
            if not 0 <= number <= _MAX_RANK:
                refused["bad_rank"] += 1
                continue
            if event.event_id == 0 or number not in self._ranks:
                self._ranks[number] = _Rank()
            rank = self._ranks[number]
            events.setdefault(number, []).extend(rank.read(event))
        payloads = [msgspec.msgpack.encode([0.0, each, rank]) for rank, each in events.items()]
        return Drained(tuple(payloads), refused)


# --- the JSON ------------------------------------------------------------------------------------


class _Event(msgspec.Struct):
    event_id: int
    data: msgspec.Raw
    window_size: int = 0
    layer_group_id: int | None = None
    attention_dp_rank: int | None = None


class _Token(msgspec.Struct):
    token_id: int | str
    token_extra_id: int = 0


class _MmKey(msgspec.Struct):
    hash: str
    start_offset: int


class _Block(msgspec.Struct):
    block_hash: _Hash
    tokens: list[_Token]
    cache_level: int = 0
    mm_keys: list[_MmKey] = []
    cache_salt: str | None = None


class _Change(msgspec.Struct):
    old_value: int
    new_value: int


class _Created(msgspec.Struct, tag_field="type", tag="created"):
    pass


class _Stored(msgspec.Struct, tag_field="type", tag="stored"):
    blocks: list[_Block]
    parent_hash: _Hash | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="removed"):
    block_hashes: list[_Hash]


class _Updated(msgspec.Struct, tag_field="type", tag="updated"):
    block_hash: _Hash
    cache_level: _Change | None = None


_Data: TypeAlias = _Created | _Stored | _Removed | _Updated


# --- the usual wire ------------------------------------------------------------------------------


class _Rank:
    """What is remembered of one rank."""

    def __init__(self) -> None:
        self._next = 0
        self._windows: list[int] = []
        self._moved: dict[tuple[int, _Hash], int] = {}
        self._has_forgotten = False

    def read(self, event: _Event) -> Iterator[msgspec.Raw]:
        """Write an event of the usual wire for each thing that the event tells."""
        if event.event_id == 0:  # The engine has started.
            yield _encoded({"type": "AllBlocksCleared"})
        elif event.event_id != self._next:
            yield _encoded({"type": "missing"})
        self._next = event.event_id + 1
        try:
            data = msgspec.json.decode(event.data, type=_Data)
            told = [_encoded(each) for each in self._events(data, self._group(event))]
        except (msgspec.DecodeError, RecursionError, OverflowError, ValueError):
            told = [_encoded({"type": "unreadable"})]
        yield from told

    def _group(self, event: _Event) -> int:
        if event.layer_group_id is not None:
            return event.layer_group_id
        if event.window_size not in self._windows and len(self._windows) <= _MAX_GROUPS:
            self._windows.append(event.window_size)
        return self._windows.index(event.window_size)

    def _events(self, data: _Data, group: int) -> Iterator[_Map]:
        match data:
            case _Stored():
                yield from self._stored(data, group)
            case _Removed():
                for medium, blocks in self._by_medium(data.block_hashes, group):
                    yield _removal(blocks, medium, group)
            case _Updated(cache_level=_Change() as level):
                yield from self._move(data.block_hash, level, group)
            case _Updated() | _Created():
                pass

    def _stored(self, stored: _Stored, group: int) -> Iterator[_Map]:
        parent = None if stored.parent_hash is None else _hash(stored.parent_hash)
        for (level, size, salt), run in groupby(stored.blocks, _alike):
            blocks = list(run)
            for block in blocks:
                self._note(group, block.block_hash, level)
            hashes = [_hash(block.block_hash) for block in blocks]
            yield {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": parent,
                "token_ids": [_token(token) for block in blocks for token in block.tokens],
                "block_size": size,
                "medium": _medium(level),
                "group_idx": group,
                "cache_salt": salt,
                "mm_keys": [[msgspec.to_builtins(key) for key in b.mm_keys] for b in blocks],
            }
            parent = hashes[-1]

    def _move(self, block: _Hash, level: _Change, group: int) -> Iterator[_Map]:
        """Write a move as a copy that its hash places, and the removal of the old one."""
        self._note(group, block, level.new_value)
        yield {
            "type": "BlockStored",
            "block_hashes": [_hash(block)],
            "token_ids": [],
            "block_size": 0,
            "medium": _medium(level.new_value),
            "group_idx": group,
        }
        yield _removal([block], _medium(level.old_value), group)

    def _note(self, group: int, block: _Hash, level: int) -> None:
        """Remember a block that is on another level than the first."""
        if level == 0:
            self._moved.pop((group, block), None)
        elif len(self._moved) < MAX_MOVED:
            self._moved[group, block] = level
        else:
            self._has_forgotten = True

    def _by_medium(self, blocks: Sequence[_Hash], group: int) -> Iterator[tuple[str, list[_Hash]]]:
        """Return blocks that are gone, with the tier that they were on."""
        levels = [self._moved.pop((group, block), 0) for block in blocks]
        if self._has_forgotten:
            yield from ((medium, list(blocks)) for medium in _MEDIA)
            return
        tiers = zip(map(_medium, levels), blocks, strict=True)
        for medium, run in groupby(tiers, lambda pair: pair[0]):
            yield medium, [block for _, block in run]


def _encoded(event: _Map) -> msgspec.Raw:
    """Return the bytes of one event.

    Raises:
        OverflowError: A number of more than 64 bits.
    """
    return msgspec.Raw(msgspec.msgpack.encode(event))


def _removal(blocks: Sequence[_Hash], medium: str, group: int) -> _Map:
    hashes = [_hash(block) for block in blocks]
    fields = {"block_hashes": hashes, "medium": medium, "group_idx": group}
    return {"type": "BlockRemoved", **fields}


def _alike(block: _Block) -> tuple[int, int, str | None]:
    """Return what all blocks of one event have in common."""
    return block.cache_level, len(block.tokens), block.cache_salt


def _medium(level: int) -> str:
    if level < 0:
        raise ValueError(f"cache_level is {level}; expected at least 0")
    return _MEDIA[min(level, len(_MEDIA) - 1)]


def _hash(value: _Hash) -> int | bytes:
    """Return an integer as it is, and the bytes of one that is written in hexadecimal digits."""
    return bytes.fromhex(value) if isinstance(value, str) else value


def _token(token: _Token) -> int | str:
    """Return what tells a token from others: its id, or a text with its extra id."""
    return f"{token.token_id}/{token.token_extra_id}" if token.token_extra_id else token.token_id
