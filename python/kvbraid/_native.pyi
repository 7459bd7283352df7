"""Types of the native core; checked against the built module by stubtest."""

from collections.abc import Sequence
from typing import TypeAlias

from typing_extensions import Buffer

__all__ = [
    "__version__",
    "decode_batch",
    "engine_chain",
    "engine_chain_keys",
    "engine_none_hash",
    "resume",
    "resume_accepted",
    "resume_limiting",
    "resume_present",
]

__version__: str

_EngineArg: TypeAlias = tuple[str, bytes, int, int]
_ExtraArg: TypeAlias = tuple[
    tuple[str, str] | None,
    str | None,
    Sequence[tuple[str, int, int]],
    Sequence[bytes] | None,
]

def engine_none_hash(algo: str, seed: str | None) -> bytes | None: ...
def engine_chain(
    engine: _EngineArg, tokens: Buffer | Sequence[int], extra: _ExtraArg
) -> bytes: ...
def engine_chain_keys(
    engine: _EngineArg, tokens: Buffer | Sequence[int], extra: _ExtraArg
) -> list[int]: ...

# kind, block_size, window, chunk, eagle, prefix_cacheable
_GroupTuple: TypeAlias = tuple[str, int, int | None, int | None, bool, bool]
# groups, alignment, hash_block_size, partial_hits, replay_tokens, hash_lookahead, dialect names
_TopologyTuple: TypeAlias = tuple[Sequence[_GroupTuple], int, int, bool, int, int, Sequence[str]]
# unit in tokens, words of whole blocks per group, words of interior entries per group
_HeldTuple: TypeAlias = tuple[int, Sequence[Sequence[int]], Sequence[Sequence[int]]]
# num_tokens, mask of holders, whether unknown groups need everything (else nothing)
_QueryTuple: TypeAlias = tuple[int, int, bool]

def resume(topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple) -> list[int]: ...
def resume_present(topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple) -> list[int]: ...
def resume_accepted(
    topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple, group: int
) -> list[int] | None: ...
def resume_limiting(
    topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple, answers: Sequence[int]
) -> list[tuple[int, int] | None]: ...

def decode_batch(
    payload: bytes,
) -> tuple[float | None, int | None, list[tuple[object, ...]], list[tuple[str, int | None]]]:
    """Decode one published payload into `(ts, dp_rank, events, refused)`.

    Events in the order of `events.model` fields, after their tag: `("BlockStored", hashes, parent,
    tokens, block_size, lora_id, medium, lora_name, extra_keys, group, kind, window, remote, owner,
    lookahead, salt)`, `("BlockRemoved", hashes, medium, group, remote, owner)` and
    `("AllBlocksCleared",)`. A refusal is `(reason, index of the event or None)`. Never raises for
    bad bytes.
    """
