"""What a block is called outside of its engine, and whose blocks may be read in its place.

Invariant: two blocks with one key, in namespaces of one digest, hold the same bytes.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, NamedTuple, Self

from kvbraid.errors import InvalidValueError, shortened

_GROUP_BYTES: Final = 4
_VERSION: Final = 1
"""Of what a namespace is made of: part of every digest."""


class BlockKey(NamedTuple):
    """A block: the hash of its last hash block, which covers the whole prefix, and its group."""

    block_hash: bytes
    group: int

    def to_bytes(self) -> bytes:
        """Return the key as `Record.key` has it: the hash, then the group (big endian)."""
        return self.block_hash + self.group.to_bytes(_GROUP_BYTES, "big")

    @classmethod
    def from_bytes(cls, key: bytes) -> Self:
        """Return the key that `to_bytes` wrote.

        Raises:
            InvalidValueError: It is too short for a hash and a group.
        """
        if len(key) <= _GROUP_BYTES:
            msg = f"key = {shortened(key)}; expected a hash and {_GROUP_BYTES} bytes of a group"
            raise InvalidValueError(msg)
        return cls(key[:-_GROUP_BYTES], int.from_bytes(key[-_GROUP_BYTES:], "big"))


_as_key: Final = partial(tuple.__new__, BlockKey)  # A third of the time of a call.


def block_keys(hashes: Iterable[bytes], groups: Iterable[int]) -> list[BlockKey]:
    """Return the keys of many blocks: a long prompt has thousands."""
    return [*map(_as_key, zip(hashes, groups, strict=True))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Whose blocks they are: everything that the hash of a block does not cover.

    A block's hash covers its tokens, its adapter, its media and its salt. It covers neither what
    lies where in a block nor what computed it.

    Attributes:
        layout: `kvbraid.layout.fingerprint` of the plan.
        model: The model's name or path.
        revision: The revision of its weights; "" where there is none.
        cache_dtype: The type of the cache as its operator named it, with quantisation scales.
        hash_algorithm: How blocks are hashed.
        hash_seed: The seed of the hashes. Random ones are of no use to another process.
        rank: The rank whose part of a block it is.
        num_ranks: How many ranks share a block.
    """

    layout: str
    model: str
    revision: str = ""
    cache_dtype: str = "auto"
    hash_algorithm: str
    hash_seed: str
    rank: int = 0
    num_ranks: int = 1

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that stand for all of it."""
        content = {"version": _VERSION, **asdict(self)}
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
