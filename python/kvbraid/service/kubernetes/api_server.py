"""Objects as an API server of Kubernetes lists them and tells of their changes, over HTTP.

Invariant: an answer is read for a limited time and a limited number of bytes, and an object that
cannot be read leaves everything else as it is. Nothing here knows a pod of ours, or waits after a
failure. The token is read anew for each question, so it may rotate.

    list    all objects, in pages, and the version at which they were like that
    watch   changes since a version, and bookmarks that only name a later one
    410     the version is too old: list again
"""

import contextlib
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import msgspec

from kvbraid.errors import shortened
from kvbraid.service.config import KubernetesEntry
from kvbraid.service.kubernetes.objects import (
    ApiObject,
    BadObjectError,
    EndpointSet,
    Headed,
    NoAnswerError,
    WantedPorts,
    WhyNot,
    decode,
)

LIST_S: Final = 30.0
"""A whole list has so long, in seconds."""

WATCH_S: Final = 60.0
"""So long a watch lasts, and a dead connection; the next one goes on where it ended."""

MOST_BYTES: Final = 128 << 20
"""Of a list, all its pages together: some thousand pods of 10 kB each."""

MOST_LINE_BYTES: Final = 4 << 20
"""Of one change: etcd takes objects of 1.5 MiB."""

_PATIENCE_S: Final = 10.0  # For a connection, and for the next piece of a list.
_GRACE_S: Final = 10.0  # For the end of a watch that has lasted long enough.
_OBJECTS_PER_PAGE: Final = 200
_MOST_FILE_BYTES: Final = 64 << 10
_GONE: Final = 410


class ApiSource(NamedTuple):
    """What a table asks for: the objects at a path that have some labels, and how one is read.

    Two sources are equal if they find the same. `read` raises BadObjectError.
    """

    path: str
    selector: str
    ports: WantedPorts
    read: Callable[[msgspec.Raw, WantedPorts], EndpointSet]


class Change(NamedTuple):
    """What a watch tells: an object as it is now, the name of one that is gone, or nothing."""

    version: str
    found: EndpointSet | None = None
    gone: str = ""
    bad: BadObjectError | None = None


class _ListMeta(ApiObject, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(ApiObject, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _WatchEvent(ApiObject, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(ApiObject, frozen=True):
    code: int = 0
    message: str = ""


class ApiServer:
    """Asks one API server about one namespace; `close` ends the connections.

    Raises:
        OSError: The namespace or the certificates of `entry.folder` cannot be read.
    """

    def __init__(self, entry: KubernetesEntry) -> None:
        self._folder = Path(entry.folder)
        self.namespace = entry.namespace or self._file("namespace")
        self._api = entry.api
        is_encrypted = entry.api.startswith("https:")
        ca = self._folder / "ca.crt"
        self._client = httpx.Client(
            verify=ssl.create_default_context(cafile=ca) if is_encrypted else False,
            timeout=_PATIENCE_S,
            trust_env=False,
            headers={"accept": "application/json", "accept-encoding": "identity"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def read_one(self, path: str) -> bytes:
        """Return one object.

        Raises:
            NoAnswerError: There is none, or not within the limits.
        """
        until = time.monotonic() + LIST_S
        return b"".join(self._get(path, {}, until, MOST_LINE_BYTES, _PATIENCE_S))

    def read_all(self, source: ApiSource) -> tuple[str, list[EndpointSet | BadObjectError]]:
        """Return the version of the list, and every object in it, or why it cannot be read.

        Raises:
            NoAnswerError: There is no whole list.
        """
        until, read = time.monotonic() + LIST_S, 0
        objects: list[EndpointSet | BadObjectError] = []
        asked = {"labelSelector": source.selector, "limit": str(_OBJECTS_PER_PAGE)}
        while True:
            pieces = self._get(source.path, asked, until, MOST_BYTES - read, _PATIENCE_S)
            body = b"".join(pieces)
            read += len(body)
            page = decode(body, _List)
            for raw in page.items or ():
                try:
                    objects.append(source.read(raw, source.ports))
                except BadObjectError as error:
                    objects.append(error)
            if not page.metadata.continue_:
                return page.metadata.resource_version, objects
            asked["continue"] = page.metadata.continue_

    def watch(self, source: ApiSource, version: str, seconds: float) -> Iterator[Change]:
        """Yield what changes after a version, until the server ends the watch, or for `seconds`.

        Raises:
            NoAnswerError: `expired`: list again. Otherwise the watch failed.
        """
        asked = {
            "labelSelector": source.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        until, line = time.monotonic() + seconds + _GRACE_S, bytearray()
        pieces = self._get(source.path, asked, until, None, seconds + _GRACE_S)
        with contextlib.closing(pieces):
            for piece in pieces:
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    line += end
                    if line:
                        yield _change(source, bytes(line))
                    line.clear()
                line += rest
                if len(line) > MOST_LINE_BYTES:
                    raise NoAnswerError("too_long", f"a change has over {MOST_LINE_BYTES} bytes")

    def _get(
        self,
        path: str,
        asked: Mapping[str, str],
        until: float,
        most_bytes: int | None,
        silent_s: float,
    ) -> Generator[bytes, None, None]:
        """Yield the pieces of an answer; each comes within `silent_s`, and all before `until`."""
        headers = {"authorization": f"Bearer {self._file('token')}"}
        timeout = httpx.Timeout(_PATIENCE_S, read=silent_s)
        read = 0
        try:
            with self._client.stream(
                "GET", f"{self._api}{path}", params=asked, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    why: WhyNot = "expired" if answer.status_code == _GONE else "refused"
                    raise NoAnswerError(why, f"status {answer.status_code}")
                for piece in answer.iter_raw():
                    read += len(piece)
                    if most_bytes is not None and read > most_bytes:
                        raise NoAnswerError("too_long", f"it has over {read - len(piece)} bytes")
                    yield piece
                    if time.monotonic() > until:
                        raise NoAnswerError("slow", "the answer does not end")
        except httpx.TimeoutException as error:
            raise NoAnswerError("slow", type(error).__name__) from None
        except httpx.HTTPError as error:
            told = shortened(str(error) or type(error).__name__)
            raise NoAnswerError("failed", told) from None
        except (httpx.InvalidURL, UnicodeError) as error:  # Of a version that nobody can ask for.
            raise NoAnswerError("unreadable", shortened(str(error))) from None

    def _file(self, name: str) -> str:
        with (self._folder / name).open("rb") as file:
            text = file.read(_MOST_FILE_BYTES).decode("ascii", "replace").strip()
        if not text.isprintable() or not text.isascii():
            raise NoAnswerError("failed", f"{self._folder / name} holds no {name}")
        return text


def _change(source: ApiSource, line: bytes) -> Change:
    event = decode(line, _WatchEvent)
    if event.type == "ERROR":
        status = decode(event.object, _Status)
        why: WhyNot = "expired" if status.code == _GONE else "refused"
        raise NoAnswerError(why, f"status {status.code}: {shortened(status.message)}")
    meta = decode(event.object, Headed).metadata
    if event.type == "DELETED":
        return Change(meta.resource_version, gone=meta.name)
    if event.type not in {"ADDED", "MODIFIED"}:
        return Change(meta.resource_version)  # A bookmark.
    try:
        return Change(meta.resource_version, found=source.read(event.object, source.ports))
    except BadObjectError as error:
        return Change(meta.resource_version, bad=error)
