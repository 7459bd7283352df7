"""Spans of decisions, sent over OTLP/HTTP to a collector that decodes its messages."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from kvbraid.service import tracing
from kvbraid.service.config import ServerOptions
from kvbraid.service.tracing import DecisionSpans, SpanQueue
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tests.service.picks import PROMPT, Fleet, fleet_of
from tests.service.serving import ONE_POD, serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """Takes spans over OTLP/HTTP."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Span] = []
        self.services: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[str]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.status == 200 and self.path == "/v1/traces":
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads, server.block_on_close = True, False
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            named = {attribute.key: attribute.value for attribute in each.resource.attributes}
            self.services.add(named["service.name"].string_value)
            self.spans += [span for scope in each.scope_spans for span in scope.spans]


def told(span: Span) -> dict[str, object]:
    kinds = {each.key: each.value.WhichOneof("value") for each in span.attributes}
    return {each.key: getattr(each.value, kinds[each.key] or "") for each in span.attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    with found.running() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "router-of-tests")
        yield found


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


def trace(fleet: Fleet) -> DecisionSpans:
    spans = fleet.service.picking.spans = DecisionSpans(fleet.service.picking.num_spans)
    return spans


def test_a_decision_is_a_span_of_the_trace_that_asks_with_every_term(
    fleet: Fleet, collector: Collector
) -> None:
    spans = trace(fleet)
    body = {"model": "m", "token_ids": PROMPT, "request_id": "r", "explain": True}
    asked = fleet.client.post("/v1/pick", json=body, headers={"traceparent": TRACEPARENT})
    spans.close()
    (span,) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.name == "kvbraid.pick"
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    answer, said = asked.json(), told(span)
    terms = {f"kvbraid.term.{name}": value for name, value in answer["terms"].items()}
    same = ("model", "pod", "dp_rank", "lower", "upper", "resumable", "policy", "cost")
    assert said == terms | {f"kvbraid.{name}": answer[name] for name in same} | {
        "kvbraid.request": "r",
        "kvbraid.state": answer["state"],
        "kvbraid.prompt_tokens": len(PROMPT),
        "kvbraid.candidates": len(answer["candidates"]),
        "kvbraid.knowledge": answer["knowledge"],
    }
    assert collector.services == {"router-of-tests"}
    assert fleet.metrics("kvbraid_spans_total")['{outcome="exported"}'] == 1


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "x" * 9000])
def test_a_decision_without_a_trace_that_can_be_read_begins_its_own(
    fleet: Fleet, collector: Collector, header: str
) -> None:
    spans = trace(fleet)
    body = {"model": "m", "token_ids": PROMPT}
    assert fleet.client.post("/v1/pick", json=body, headers={"traceparent": header}).is_success
    spans.close()
    (span,) = collector.spans
    assert span.trace_id.hex() not in {TRACE, "0" * 32}
    assert span.parent_span_id == b""


def test_a_trace_that_is_not_sampled_has_no_span(fleet: Fleet, collector: Collector) -> None:
    spans = trace(fleet)
    header = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    fleet.client.post("/v1/pick", json={"model": "m", "token_ids": PROMPT}, headers=header)
    spans.close()
    assert collector.spans == []


def test_spans_that_a_collector_refuses_are_counted(fleet: Fleet, collector: Collector) -> None:
    collector.status = 400
    spans = trace(fleet)
    fleet.pick()
    spans.close()
    assert fleet.service.picking.num_spans == {"exported": 0, "failed": 1, "dropped": 0}


class Stuck(SpanExporter):
    """Takes spans only when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.is_asked = threading.Event()
        self.num_taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.go_on.wait(30)
        self.num_taken += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def test_a_collector_that_hangs_makes_nobody_wait_and_every_span_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "MOST_WAITING", 6)
    monkeypatch.setattr(tracing, "MOST_AT_ONCE", 2)
    exporter, counts = Stuck(), Counter[str]()
    queue = SpanQueue(exporter, counts)
    for _ in range(2):
        queue.on_end(ReadableSpan("a"))
    assert exporter.is_asked.wait(10)
    for _ in range(10):
        queue.on_end(ReadableSpan("a"))
        queue.check_integrity()
    assert counts == Counter(dropped=4)
    exporter.go_on.set()
    queue.shutdown()
    assert counts == Counter(dropped=4, exported=8)
    assert exporter.num_taken == 8


def test_the_end_waits_for_no_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(tracing, "END_S", 0.1)
    exporter, counts = Stuck(), Counter[str]()
    queue = SpanQueue(exporter, counts)
    for _ in range(3):
        queue.on_end(ReadableSpan("a"))
    assert exporter.is_asked.wait(10)
    queue.shutdown()
    assert counts == Counter(dropped=2)
    exporter.go_on.set()


def test_an_exporter_that_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Stuck):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise OSError(len(spans))

    counts = Counter[str]()
    queue = SpanQueue(Raises(), counts)
    queue.on_end(ReadableSpan("a"))
    queue.shutdown()
    assert counts == Counter(failed=1)
    assert "spans could not be sent" in caplog.messages


def test_a_gateway_passes_the_trace_of_its_client_on(tmp_path: Path, collector: Collector) -> None:
    config = tmp_path / "fleet.toml"
    text = ONE_POD.format(folder=tmp_path, url="http://127.0.0.1:1")
    config.write_text(text.replace("[server]", "[server]\notel = true"))
    with serving("--config", str(config), name="route") as (process, url):
        body = {"model": "m", "prompt": [1, 2, 3]}
        headers = {"traceparent": TRACEPARENT}
        assert httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 502
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}


def test_nobody_is_told_anything_unless_that_is_asked_for() -> None:
    assert ServerOptions().otel is False
