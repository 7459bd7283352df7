"""A fake API server of Kubernetes over real HTTP: it lists, tells, lies, is slow or closes."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SLICES = "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices"
PODS = "/api/v1/namespaces/inference/pods"
POOL = "/apis/inference.networking.k8s.io/v1/namespaces/inference/inferencepools/engines"


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


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


def a_pod(number: int, *, ready: bool = True, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A pod as kubelets write it; `more` are further fields of its status."""
    ports = [{"name": "http", "containerPort": 8000}, {"name": "events", "containerPort": 5557}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"engine-{number}",
            "resourceVersion": "1",
            "labels": {"app": "vllm"},
        },
        "spec": {"containers": [{"name": "engine", "ports": ports}, {"name": "other"}]},
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{number >> 8}.{number & 255}",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ],
            **more,
        },
    }


def that_goes(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod that was asked to go."""
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-11-27T20:00:00Z"}}


def a_pool(*ports: int, **labels: str) -> dict[str, Any]:
    selector = {"matchLabels": labels or {"app": "vllm"}}
    target_ports = [{"number": port} for port in ports or (8000,)]
    return {"kind": "InferencePool", "spec": {"selector": selector, "targetPorts": target_ports}}


class FakeApi:
    """What it answers is changed while it runs.

    `token`: what it takes. `objects`: what a list at `path` holds. `pool`: what is at POOL.
    `tell`: puts a change, or bytes, into the watch; `close` ends it in the middle. `gone`: so many
    watches are answered with 410. `answers`: called instead of everything else.
    """

    def __init__(self) -> None:
        self.token = "first"
        self.path = SLICES
        self.objects: list[Any] = []
        self.pool: Any = None
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
        path, query = urlsplit(call.path)[2:4]
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if path != POOL:
            self.asked.append(asked)
        if call.headers["authorization"] != f"Bearer {self.token}":
            self.send(call, b"{}", 401)
        elif path == POOL and self.pool is not None:
            self.send(call, json.dumps(self.pool).encode())
        elif path != self.path:
            self.send(call, b"{}", 404)
        elif "watch" in asked:
            self._watch(call)
        else:
            first = int(asked.get("continue", 0))
            last = first + self.page
            metadata = {"resourceVersion": str(self.version)}
            if last < len(self.objects):
                metadata["continue"] = str(last)
            listed = {"metadata": metadata, "items": self.objects[first:last]}
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
