"""The EndpointSlices of a service, as an API server of Kubernetes lists them and tells of changes.

Invariant: an answer is read for a limited time and a limited number of bytes, and an object that
cannot be read leaves everything else as it is. Nothing here knows a pod of ours, or waits after a
failure. The token is read anew for each question, so it may rotate.

    list    all slices, in pages, and the version at which they were like that
    watch   changes since a version, and bookmarks that only name a later one
    410     the version is too old: list again
"""

import contextlib
import re
import ssl
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import httpx
import msgspec

from kvbraid.errors import one_line, shortened
from kvbraid.service.config import KubernetesEntry

LIST_S: Final = 30.0
"""A whole list has so long, in seconds."""

WATCH_S: Final = 60.0
"""So long a watch lasts, and a dead connection; the next one goes on where it ended."""

MOST_BYTES: Final = 32 << 20
"""Of a list, all its pages together."""

MOST_LINE_BYTES: Final = 4 << 20
"""Of one change: etcd takes objects of 1.5 MiB."""

MOST_ENDPOINTS: Final = 16384
"""Of all slices of one table."""

_PATIENCE_S: Final = 10.0  # For a connection, and for the next piece of a list.
_GRACE_S: Final = 10.0  # For the end of a watch that has lasted long enough.
_SLICES_PER_PAGE: Final = 200
_POD_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_MOST_FILE_BYTES: Final = 64 << 10
_GONE: Final = 410

WhyNot: TypeAlias = Literal["failed", "slow", "refused", "expired", "too_long", "unreadable"]
"""Why there was no list, or no watch."""


class NoAnswerError(Exception):
    """The API server gave no answer that can be used; `why` is what is counted."""

    def __init__(self, why: WhyNot, text: str) -> None:
        super().__init__(text)
        self.why = why


class BadSliceError(Exception):
    """One object that cannot be read; `name` is its own, or empty."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class SliceEndpoint(NamedTuple):
    """One address of a slice; `name` is the pod's, or the address. The first of several counts."""

    name: str
    version: int  # Of the IP.
    address: str
    ports: tuple[tuple[str, int], ...]
    is_ready: bool


class Slice(NamedTuple):
    """One EndpointSlice, as far as it is of use."""

    name: str
    endpoints: tuple[SliceEndpoint, ...]


class Change(NamedTuple):
    """What a watch tells: a slice as it is now, or the name of one that is gone; none: nothing."""

    version: str
    slice: Slice | None = None
    gone: str = ""
    bad: BadSliceError | None = None


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of an object."""


class _ListMeta(_Object, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(_Object, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _WatchEvent(_Object, frozen=True):
    type: str
    object: msgspec.Raw


class _Meta(_Object, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Headed(_Object, frozen=True):
    metadata: _Meta


class _Status(_Object, frozen=True):
    code: int = 0
    message: str = ""


class _Reference(_Object, frozen=True):
    kind: str = ""
    name: str = ""


class _Conditions(_Object, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _Endpoint(_Object, frozen=True, rename="camel"):
    addresses: list[str]
    conditions: _Conditions = _Conditions()
    target_ref: _Reference | None = None


class _SlicePort(_Object, frozen=True):
    name: str | None = None
    port: int | None = None


class _Slice(_Object, frozen=True, rename="camel"):
    metadata: _Meta
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_SlicePort] | None = None


_Read = TypeVar("_Read", bound=_Object)


def _decode(body: bytes | msgspec.Raw, kind: type[_Read]) -> _Read:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoAnswerError("unreadable", shortened(str(error))) from None


def read_slice(raw: bytes | msgspec.Raw, port_names: Collection[str] = ()) -> Slice:
    """Return a slice, from its object; of its ports, those with these names.

    Raises:
        BadSliceError: It has another form, or an address that is none.
    """
    name = ""
    try:
        name = _decode(raw, _Headed).metadata.name
        found = _decode(raw, _Slice)
        return Slice(name, tuple(_endpoints(found, port_names)))
    except (NoAnswerError, ValueError) as error:
        raise BadSliceError(name, one_line(str(error))) from None


def _endpoints(found: _Slice, port_names: Collection[str]) -> Iterator[SliceEndpoint]:
    named = {port.name: port.port for port in found.ports or () if port.name in port_names}
    ports = tuple((name, port) for name, port in named.items() if name and port)
    for each in found.endpoints or ():
        if not each.addresses:
            continue
        # Kubernetes says that the first address is the endpoint's, and further ones mean nothing.
        address = ip_address(each.addresses[0])
        target, conditions = each.target_ref, each.conditions
        name = target.name if target is not None and target.kind == "Pod" else ""
        if name and not _POD_NAME.fullmatch(name):
            raise ValueError(f"no pod can have the name {shortened(name)}")
        yield SliceEndpoint(
            name=name or str(address),
            version=address.version,
            address=str(address),
            ports=ports,
            # What is not said is as if it were ready.
            is_ready=conditions.ready is not False and conditions.terminating is not True,
        )


class SliceReader:
    """Asks one API server for the slices of one table; `close` ends the connections.

    Raises:
        OSError: The namespace or the certificates of `entry.folder` cannot be read.
    """

    def __init__(self, entry: KubernetesEntry) -> None:
        ports = (entry.port, entry.events_port, entry.replay_port)
        self._port_names = frozenset(port for port in ports if isinstance(port, str))
        self._folder = Path(entry.folder)
        self.namespace = entry.namespace or self._file("namespace")
        group = f"{entry.api}/apis/discovery.k8s.io/v1"
        self._url = f"{group}/namespaces/{self.namespace}/endpointslices"
        self._selector = entry.selector or f"kubernetes.io/service-name={entry.service}"
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

    def read_all(self) -> tuple[str, list[Slice | BadSliceError]]:
        """Return the version of the list, and every slice in it, or why it cannot be read.

        Raises:
            NoAnswerError: There is no whole list.
        """
        until, read = time.monotonic() + LIST_S, 0
        slices: list[Slice | BadSliceError] = []
        page = _ListMeta()
        while True:
            more = {"limit": str(_SLICES_PER_PAGE)} | (
                {"continue": page.continue_} if page.continue_ else {}
            )
            body = b"".join(self._get(more, until, MOST_BYTES - read, _PATIENCE_S))
            read += len(body)
            found = _decode(body, _List)
            page = found.metadata
            for raw in found.items or ():
                try:
                    slices.append(read_slice(raw, self._port_names))
                except BadSliceError as error:
                    slices.append(error)
            if not page.continue_:
                return page.resource_version, slices

    def watch(self, version: str, seconds: float) -> Iterator[Change]:
        """Yield what changes after a version, until the server ends the watch, or for `seconds`.

        Raises:
            NoAnswerError: `expired`: list again. Otherwise the watch failed.
        """
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        until, line = time.monotonic() + seconds + _GRACE_S, bytearray()
        with contextlib.closing(self._get(asked, until, None, seconds + _GRACE_S)) as pieces:
            for piece in pieces:
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    line += end
                    if line:
                        yield self._change(bytes(line))
                    line.clear()
                line += rest
                if len(line) > MOST_LINE_BYTES:
                    raise NoAnswerError("too_long", f"a change has over {MOST_LINE_BYTES} bytes")

    def _change(self, line: bytes) -> Change:
        event = _decode(line, _WatchEvent)
        if event.type == "ERROR":
            status = _decode(event.object, _Status)
            why: WhyNot = "expired" if status.code == _GONE else "refused"
            raise NoAnswerError(why, f"status {status.code}: {shortened(status.message)}")
        meta = _decode(event.object, _Headed).metadata
        if event.type == "DELETED":
            return Change(meta.resource_version, gone=meta.name)
        if event.type not in {"ADDED", "MODIFIED"}:
            return Change(meta.resource_version)  # A bookmark.
        try:
            return Change(meta.resource_version, slice=read_slice(event.object, self._port_names))
        except BadSliceError as error:
            return Change(meta.resource_version, bad=error)

    def _get(
        self, asked: Mapping[str, str], until: float, most_bytes: int | None, silent_s: float
    ) -> Generator[bytes, None, None]:
        """Yield the pieces of an answer; each comes within `silent_s`, and all before `until`."""
        headers = {"authorization": f"Bearer {self._file('token')}"}
        query = {"labelSelector": self._selector, **asked}
        timeout = httpx.Timeout(_PATIENCE_S, read=silent_s)
        read = 0
        try:
            with self._client.stream(
                "GET", self._url, params=query, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    why: WhyNot = "expired" if answer.status_code == _GONE else "refused"
                    raise NoAnswerError(why, f"status {answer.status_code}")
                for piece in answer.iter_raw():
                    read += len(piece)
                    if most_bytes is not None and read > most_bytes:
                        raise NoAnswerError("too_long", f"a list has over {MOST_BYTES} bytes")
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
