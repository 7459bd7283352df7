"""A fake hash chain and short names for groups, for tests of the simulated engines."""

import hashlib
from collections.abc import Sequence

from kvbraid.spec import GroupSpec, SpecKind

from tests.reference.cache import HashChain


def chain(block_size: int) -> HashChain:
    """Hash each block with its parent and the salt; any injective chain will do."""

    def hashes(tokens: Sequence[int], salt: str | None) -> list[bytes]:
        parent, out = repr(salt).encode(), []
        for start in range(0, len(tokens) - block_size + 1, block_size):
            block = repr(list(tokens[start : start + block_size])).encode()
            parent = hashlib.blake2b(parent + block, digest_size=16).digest()
            out.append(parent)
        return out

    return hashes


def full(block_size: int = 16, *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size, eagle=eagle)


def window(tokens: int, block_size: int = 16, *, eagle: bool = False) -> GroupSpec:
    kind = SpecKind.SLIDING_WINDOW
    return GroupSpec(kind=kind, block_size=block_size, window=tokens, eagle=eagle)


def chunked(tokens: int, block_size: int = 16) -> GroupSpec:
    kind = SpecKind.CHUNKED_LOCAL_ATTENTION
    return GroupSpec(kind=kind, block_size=block_size, chunk=tokens)


def mamba(block_size: int = 16) -> GroupSpec:
    return GroupSpec(kind=SpecKind.MAMBA, block_size=block_size)
