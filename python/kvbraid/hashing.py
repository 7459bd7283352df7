"""The engines' chained block hashes: from a request's tokens and extra keys, one hash per block.

Invariant: a block's hash is the engine's algorithm applied to (the hash before it, the tokens of
the block, its extra keys), starting from a seed hash. The bytes are those of the engine, so a
hash computed here equals the one in its events. If an engine draws its seed at random, nothing is
guessed: the computation is refused.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from kvbraid._native import engine_chain, engine_chain_keys, engine_none_hash
from kvbraid.ids import BlockHash
from kvbraid.reading import COUNT, POSITIVE_COUNT, check

if TYPE_CHECKING:
    from typing_extensions import Buffer


class NumberArray(Protocol):
    """What type checkers see of a numpy array: before Python 3.12 they see no buffer in it."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    @property
    def __array_interface__(self) -> dict[str, object]: ...


Tokens: TypeAlias = "Buffer | NumberArray | Sequence[int]"
"""Token ids: a contiguous buffer of uint32 (array('I'), numpy.uint32: fastest), or integers."""


class HashAlgo(Enum):
    """How an engine serialises and hashes a block; the value is the engine's own name."""

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"
    XXHASH = "xxhash"
    XXHASH_CBOR = "xxhash_cbor"


@dataclass(frozen=True, slots=True)
class EngineHash:
    """One engine's hash function, as its operator configured it.

    `seed` is the engine's PYTHONHASHSEED (None: not set), and `block_size` is its hash block in
    tokens. `lookahead` is how many tokens after its block a hash also covers.
    """

    algo: HashAlgo = HashAlgo.SHA256
    seed: str | None = None
    block_size: int = 16
    lookahead: int = 0

    def __post_init__(self) -> None:
        check("block_size", self.block_size, POSITIVE_COUNT)
        check("lookahead", self.lookahead, COUNT)


class Lora(NamedTuple):
    """An adapter: both its name and its path separate caches."""

    name: str
    path: str


class MediaItem(NamedTuple):
    """One multimodal input: the engine's content identifier and its placeholder's tokens."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What keeps a request's blocks apart from other blocks with the same tokens.

    `media` is in the order of its offsets (tokens from the request's start). `prompt_embeds` has,
    per block, the SHA-256 of the embeddings that the block's hash covers.
    """

    lora: Lora | None = None
    cache_salt: str | None = None
    media: tuple[MediaItem, ...] = ()
    prompt_embeds: tuple[bytes, ...] | None = None


NO_EXTRA_KEYS: ExtraKeys = ExtraKeys()


@lru_cache(maxsize=64)
def none_hash(algo: HashAlgo, seed: str | None) -> BlockHash | None:
    """Return the parent of every first block, or None if the engine draws its seed at random.

    `seed` is PYTHONHASHSEED as the engine's environment has it; None means that it is not set.
    """
    digest = engine_none_hash(algo.value, seed)
    return None if digest is None else BlockHash(digest)


def block_hashes(
    tokens: Tokens, engine: EngineHash, extra: ExtraKeys = NO_EXTRA_KEYS
) -> list[BlockHash]:
    """Hash every whole block of a request; hash n covers the tokens before (n + 1) * block_size.

    Raises InvalidValueError for a random seed, a value that is not a token id, unsorted media.
    """
    digests = engine_chain(engine, tokens, extra)
    width = 32 if engine.algo in (HashAlgo.SHA256, HashAlgo.SHA256_CBOR) else 16
    # One call for all blocks: slicing them one by one costs more than hashing.
    return cast(
        "list[BlockHash]", list(struct.unpack(f"{width}s" * (len(digests) // width), digests))
    )


def block_keys(tokens: Tokens, engine: EngineHash, extra: ExtraKeys = NO_EXTRA_KEYS) -> list[int]:
    """Return the integer form of `block_hashes`: the last 8 bytes of each, read big-endian."""
    return engine_chain_keys(engine, tokens, extra)
