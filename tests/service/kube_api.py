"""A fake API server of Kubernetes over real HTTP: it lists, tells, lies, is slow or closes."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATH = "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices"


def endpoint(number: int, *, ready: bool = True, terminating: bool = False) -> dict[str, Any]:
    return {
        "addresses": [f"10.0.{number >> 8}.{number & 255}"],
        "conditions": {"ready": ready, "serving": True, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"engine-{number}", "namespace": "inference"},
    }


def a_slice(name: str, *endpoints: dict[str, Any], version: int = 1) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "resourceVersion": str(version), "labels": {}},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000}, {"name": "events", "port": 5557}],
    }


class FakeApi:
    """What it answers is changed while it runs.

    `token`: what it takes. `slices`: what a list holds. `tell`: puts a change, or bytes, into the
    watch; `close` ends it in the middle. `gone`: so many watches are answered with 410.
    `answers`: called instead of everything else.
    """

    def __init__(self) -> None:
        self.token = "first"
        self.slices: list[Any] = []
        self.version = 1
        self.page = 1000
        self.gone = 0
        self.asked: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.watches = 0
        self.answers: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        self._told: deque[bytes | None] = deque()
        self._changed = threading.Condition()
        self.url = ""

    def tell(self, kind: str, each: Any) -> None:  # noqa: ANN401
        self.say(json.dumps({"type": kind, "object": each}).encode() + b"\n")
        if kind == "ERROR":
            self.close()

    def bookmark(self, version: int) -> None:
        self.tell("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})

    def say(self, text: bytes | None) -> None:
        with self._changed:
            self._told.append(text)
            self._changed.notify_all()

    def close(self) -> None:
        self.say(None)

    @contextmanager
    def running(self) -> Iterator["FakeApi"]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                try:
                    if not api.answers(self):
                        api._answer(self)
                except OSError:
                    self.close_connection = True  # The client has seen enough.

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            server.block_on_close = False
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            try:
                yield self
            finally:
                with self._changed:
                    self.watches += 1
                    self._changed.notify_all()
                server.shutdown()
                thread.join()

    def _answer(self, call: BaseHTTPRequestHandler) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(call.path).query).items()}
        self.asked.append(asked)
        if call.headers["authorization"] != f"Bearer {self.token}":
            self.send(call, b"{}", 401)
        elif urlsplit(call.path).path != PATH:
            self.send(call, b"{}", 404)
        elif "watch" in asked:
            self._watch(call)
        else:
            first = int(asked.get("continue", 0))
            last = first + self.page
            metadata = {"resourceVersion": str(self.version)}
            if last < len(self.slices):
                metadata["continue"] = str(last)
            listed = {"metadata": metadata, "items": self.slices[first:last]}
            self.send(call, json.dumps(listed).encode())

    def _watch(self, call: BaseHTTPRequestHandler) -> None:
        with self._changed:
            self.watches += 1
            mine = self.watches
            self._changed.notify_all()
        if self.gone:
            self.gone -= 1
            self.send(call, b"{}", 410)
            return
        call.send_response(200)
        call.send_header("transfer-encoding", "chunked")
        call.end_headers()
        while (text := self._next(mine)) is not None:
            call.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        call.close_connection = True  # In the middle: the last chunk is missing.

    def _next(self, mine: int) -> bytes | None:
        """Return what the latest watch is told; None: it ends, as an older one does."""
        with self._changed:
            self._changed.wait_for(lambda: self._told or self.watches != mine)
            return self._told.popleft() if self.watches == mine else None

    def send(self, call: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
        self.statuses.append(status)
        call.send_response(status)
        call.send_header("content-length", str(len(body)))
        call.end_headers()
        call.wfile.write(body)
