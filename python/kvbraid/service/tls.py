"""The `[tls]` table of fleet.toml, and the context that is made from its files.

A context is made while the file is read. So a certificate that does not fit its key is an error of
the file, and what was read cannot fail later.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError

_PemPath = Annotated[str, Meta(min_length=1)]
_PROTOCOLS: Final = ["http/1.1"]


class TlsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files in PEM form, relative to fleet.toml; the key has no passphrase.

    `certificate` is the server's own, followed by those that lead to its authority. With a
    `client_ca`, clients need a certificate that one of the authorities in it has signed.
    """

    certificate: _PemPath
    key: _PemPath
    client_ca: _PemPath | None = None

    def paths(self, folder: Path) -> dict[str, Path]:
        """Return the files that are given, by their keys."""
        given = msgspec.structs.asdict(self)
        return {name: folder / path for name, path in given.items() if path is not None}


@dataclass(frozen=True, slots=True)
class Tls:
    """A table and what new connections are encrypted with; the files decide both."""

    table: TlsTable
    context: ssl.SSLContext = field(compare=False)


def read_tls(table: TlsTable, folder: Path) -> Tls:
    """Read the files of a table.

    Raises:
        InvalidValueError: The key of the table, the file, and why it cannot be used.
    """
    paths = table.paths(folder)
    for name, path in paths.items():
        try:
            path.open("rb").close()
        except OSError as error:
            told = f"tls.{name} = {str(path)!r}: {error.strerror}; give a file in PEM form"
            raise InvalidValueError(told) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    try:
        # Without a passphrase of ours, OpenSSL would ask for it at the terminal.
        context.load_cert_chain(paths["certificate"], paths["key"], password="")
    except (OSError, ValueError) as error:
        both = f"{str(paths['certificate'])!r} with tls.key = {str(paths['key'])!r}"
        remedy = "give both in PEM form, the key without a passphrase"
        told = f"tls.certificate = {both}: {_why(error)}; {remedy}"
        raise InvalidValueError(told) from None
    if "client_ca" in paths:
        try:
            context.load_verify_locations(paths["client_ca"])
        except (OSError, ValueError) as error:
            told = f"tls.client_ca = {str(paths['client_ca'])!r}: {_why(error)}"
            raise InvalidValueError(f"{told}; give certificates in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return Tls(table, context)


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or "they cannot be used"
