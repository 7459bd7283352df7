"""The files of the console, as they are served: read once, found by their path alone.

Invariant: what can be asked for is what FILES lists, so no path leads anywhere else. Every file is
answered with its type, and with headers that let a browser run only what comes from here.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from kvbraid import console
from kvbraid.service.http.calls import Answer

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NOT_MODIFIED: Final = 304


class File(NamedTuple):
    """One file: its bytes, and all headers that it is served with."""

    body: bytes
    content_type: str
    etag: bytes

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers besides those that every answer has."""
        return (
            (b"etag", self.etag),
            (b"cache-control", b"no-cache"),  # Ask whether it is still the same.
            (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        )


def file_answer(file: File, if_none_match: bytes) -> Answer:
    """Return the file, or that it is the one that the client has already."""
    known = {tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")}
    if file.etag in known:
        return Answer(status=_NOT_MODIFIED, content_type=file.content_type, headers=file.headers)
    return Answer(file.body, content_type=file.content_type, headers=file.headers)


def _files() -> Iterator[tuple[str, File]]:
    for name in console.FILES:
        yield f"/console/{name}", _file(name)
    index = _file(console.INDEX)
    yield "/", index
    for page in console.PAGES:
        yield f"/{page}", index


def _file(name: str) -> File:
    body = console.read(name)
    etag = b'"%s"' % sha256(body).hexdigest()[:32].encode()
    return File(body, _TYPES[name.rpartition(".")[2]], etag)


FILES: Final[Mapping[str, File]] = dict(_files())
"""By path."""
