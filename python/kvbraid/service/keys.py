"""Keys and what they allow: the `[[keys]]` tables of fleet.toml.

A key is 256 random bits, so its SHA-256 cannot be turned back by trying: a slow hash, which is for
passwords that people choose, would only make every request slower. The file has hashes alone.
"""

import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError

Right: TypeAlias = Literal["read", "explain", "route", "change", "snapshot"]
"""What a key may allow; docs/threat-model.md says what follows from each."""

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
TOKEN: Final = "token"  # noqa: S105 - a name
"""The name of the key that `server.token` is."""

MOST_KEYS: Final = 64
_PREFIX: Final = "kvbraid_"
_KEY_BYTES: Final = 32


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[keys]]` table: a name, the hash of a key in hexadecimal digits, and its rights."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    rights: Annotated[list[Right], Meta(min_length=1)]


def digest(key: bytes) -> bytes:
    """Return the hash by which a key is known."""
    return sha256(key).digest()


def new_key() -> str:
    """Make a key that nobody can guess."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def check_keys(keys: Iterable[KeyEntry]) -> None:
    """Refuse two keys of one name, or of one hash.

    Raises:
        InvalidValueError: The place of the second one, and a remedy.
    """
    names, hashes = {TOKEN}, set[str]()
    for number, key in enumerate(keys):
        if key.name in names:
            told = "is a duplicate, or that of server.token; give each key a name of its own"
            raise InvalidValueError(f"keys[{number}].name = {key.name!r} {told}")
        if key.sha256 in hashes:
            told = "is that of another key; make one with kvbraid new-key"
            raise InvalidValueError(f"keys[{number}] ({key.name}): its sha256 {told}")
        names.add(key.name)
        hashes.add(key.sha256)
