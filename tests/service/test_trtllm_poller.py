"""A buffer of events is emptied over HTTP: by hand-built bodies, on a server of ours."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.trtllm_poller import TrtllmPoller
from kvbraid.spec import GroupSpec, SpecKind, Topology

POD = PodId("a")
TOKENS = list(range(65))
TOPOLOGY = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))


def stored(number: int, first: int, last: int) -> dict[str, object]:
    blocks = [
        {"block_hash": j + 1, "tokens": [{"token_id": t} for t in TOKENS[j * 16 : j * 16 + 16]]}
        for j in range(first, last)
    ]
    data = {"type": "stored", "parent_hash": first or None, "blocks": blocks}
    return {"event_id": number, "data": data, "window_size": 8192}


class Engine(HTTPServer):
    """Gives its bodies away one by one, then empty lists."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.status = 200
        self.url = f"http://127.0.0.1:{self.server_port}/kv_cache_events"


class _Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        body = self.server.bodies.pop(0) if self.server.bodies else b"[]"
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def followed(engine: Engine) -> Iterator[FleetIndex]:
    index = FleetIndex()
    index.register(POD, model="m", topology=TOPOLOGY)
    with TrtllmPoller(engine.url, POD, index, interval_s=0.01, timeout_s=2.0):
        yield index


def bounds(index: FleetIndex) -> tuple[int, int]:
    (row,) = index.score(Request(model="m", token_ids=TOKENS)).rows
    return row.lower, row.upper


def wait_for(index: FleetIndex, expected: tuple[int, int], state: PodState) -> None:
    deadline = time.monotonic() + 10
    while (bounds(index), index.pods()[0].state) != (expected, state):
        assert time.monotonic() < deadline, (bounds(index), index.pods()[0])
        time.sleep(0.005)


def body(*events: object) -> bytes:
    return json.dumps(events).encode()


def test_what_is_drained_is_applied(engine: Engine) -> None:
    with followed(engine) as index:
        wait_for(index, (0, 0), PodState.EXACT)
        engine.bodies += [body(stored(0, 0, 2)), body(stored(1, 2, 4))]
        wait_for(index, (64, 64), PodState.EXACT)


def test_a_pod_is_stale_while_its_engine_does_not_answer(engine: Engine) -> None:
    engine.status = 503
    with followed(engine) as index:
        wait_for(index, (0, 64), PodState.STALE)
        engine.status = 200
        engine.bodies.append(body(stored(0, 0, 4)))
        wait_for(index, (64, 64), PodState.EXACT)
        engine.status = 404
        wait_for(index, (0, 64), PodState.STALE)
        assert "404" in index.pods()[0].reason


def test_a_body_that_cannot_be_read_is_counted_and_what_it_held_is_missing(
    engine: Engine,
) -> None:
    engine.bodies += [body(stored(0, 0, 2)), b"[{", body(stored(2, 2, 4))]
    with followed(engine) as index:
        wait_for(index, (0, 64), PodState.DEGRADED)
        assert index.pods()[0].refused == {"malformed_batch": 1, "unknown_event": 1}


def test_a_body_that_is_too_long_is_not_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("kvbraid.service.feeds.trtllm_poller", "kvbraid.events.buffered"):
        monkeypatch.setattr(f"{module}.MAX_BODY_BYTES", 1000)
    engine.bodies += [b" " * 2000, body(stored(1, 0, 1))]
    with followed(engine) as index:
        wait_for(index, (0, 64), PodState.DEGRADED)
        assert index.pods()[0].refused == {"too_large": 1, "unknown_event": 1}


def test_an_address_or_a_time_that_cannot_be_is_refused() -> None:
    index = FleetIndex()
    index.register(POD, model="m", topology=TOPOLOGY)
    with pytest.raises(InvalidValueError, match="expected http"):
        TrtllmPoller("tcp://127.0.0.1:1", POD, index)
    with pytest.raises(InvalidValueError, match="both must be above 0"):
        TrtllmPoller("http://127.0.0.1:1", POD, index, interval_s=0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pod_that_can_no_longer_be_followed_is_stale(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    with followed(engine) as index:
        wait_for(index, (0, 0), PodState.EXACT)
        monkeypatch.setattr(TrtllmPoller, "_apply", fail)
        wait_for(index, (0, 64), PodState.STALE)
        assert index.pods()[0].reason == "no longer followed: out of order"
