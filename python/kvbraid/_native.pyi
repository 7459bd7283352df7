"""Types of the native core; checked against the built module by stubtest."""

from collections.abc import Sequence
from typing import TypeAlias

from typing_extensions import Buffer

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
