"""The three events that engines publish, and a batch of them.

Frozen data with the field names of the wire, validated in the constructor. Hashes are unsigned 64
bits, whatever the wire's spelling. Nothing here knows bytes or what an event does to an index.
"""

from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from kvbraid.errors import InvalidValueError

ExtraKey: TypeAlias = str | tuple[str, int] | bytes
"""A salt or older multimodal identifier; a multimodal item and its offset; a digest."""

Component: TypeAlias = Literal["full", "swa", "mamba"]
"""What SGLang keeps of a block: full attention, windows, or the state at its end."""

TokenId: TypeAlias = int | str
"""SGLang stands media in by numbers of up to 62 bits, TensorRT-LLM by texts."""

_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Copies of blocks appeared.

    `token_ids` is the whole span, including blocks that `block_hashes` does not list. `extra_keys`
    and `lookahead_token_ids` have one entry per listed block. The extra keys do not contain the
    LoRA name, which only the wire repeats there; None means that the engine did not say. With
    `component_type` the event is about one component alone; `component_types` are all those that
    each listed block has from now on.

    Raises:
        InvalidValueError: A value that the wire cannot carry, or a list of the wrong length.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[TokenId, ...]
    block_size: int
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None
    extra_keys: tuple[tuple[ExtraKey, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Literal["LOCAL", "REMOTE"] | None = None
    ownership: str | None = None
    lookahead_token_ids: tuple[tuple[TokenId, ...], ...] | None = None
    cache_salt: str | None = None
    component_type: Component | None = None
    component_types: tuple[Component, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what the wire cannot carry."""
        parent = () if self.parent_block_hash is None else (self.parent_block_hash,)
        window = self.kv_cache_spec_sliding_window
        _check("block_hashes", self.block_hashes, _U64_MAX)
        _check("parent_block_hash", parent, _U64_MAX)
        _check_tokens("token_ids", self.token_ids)
        _check("block_size", (self.block_size,), _U32_MAX)
        _check("group_idx", () if self.group_idx is None else (self.group_idx,), _U32_MAX)
        _check("kv_cache_spec_sliding_window", () if window is None else (window,), _U32_MAX)
        for tokens in self.lookahead_token_ids or ():
            _check_tokens("lookahead_token_ids", tokens)
        for name in ("extra_keys", "lookahead_token_ids"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != len(self.block_hashes):
                raise InvalidValueError(
                    f"{name} has {len(entries)} entries for {len(self.block_hashes)} block hashes;"
                    " give one per listed block, or None"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Copies of blocks were removed.

    Raises:
        InvalidValueError: A value that the wire cannot carry.
    """

    block_hashes: tuple[int, ...]
    medium: str = "GPU"
    group_idx: int | None = None
    locality: Literal["LOCAL", "REMOTE"] | None = None
    ownership: str | None = None
    component_type: Component | None = None

    def __post_init__(self) -> None:
        """Refuse what the wire cannot carry."""
        _check("block_hashes", self.block_hashes, _U64_MAX)
        _check("group_idx", () if self.group_idx is None else (self.group_idx,), _U32_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllBlocksCleared:
    """The engine forgot every block of its own memory."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefusal:
    """A part of a payload that could not be read.

    `event_index` is the position in the payload's own list of events; None: not in this list.
    """

    reason: str
    event_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """One payload: when it was made (seconds since the epoch), its rank, and what happened."""

    ts: float | None
    events: tuple[Event, ...]
    dp_rank: int | None = None
    refused: tuple[BatchRefusal, ...] = ()


def _check_tokens(name: str, tokens: tuple[TokenId, ...]) -> None:
    """Refuse integers outside 64 bits, and empty texts."""
    if not tokens:
        return
    with suppress(TypeError, OverflowError, ValueError):
        # There may be thousands: much faster than to look at each.
        array("Q", cast("tuple[int, ...]", tokens))
        return
    if "" in tokens:
        raise InvalidValueError(f"{name} holds an empty text; a token is a number or a name")
    _check(name, tuple(token for token in tokens if not isinstance(token, str)), _U64_MAX)


def _check(name: str, values: tuple[int, ...], largest: int) -> None:
    """Refuse integers outside 0..largest."""
    if not values or (min(values) >= 0 and max(values) <= largest):
        return
    value = next(value for value in values if not 0 <= value <= largest)
    raise InvalidValueError(f"{name} holds {value}; the wire carries 0 to {largest}")
