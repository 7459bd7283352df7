"""Decisions as spans of OpenTelemetry, sent over OTLP/HTTP by its own exporter.

Invariant: who picks never waits for a collector. Spans wait in a queue that is bounded; one for
which there is no room is dropped, and every span is counted once: `exported`, `failed` or
`dropped`. This is the only module that knows OpenTelemetry. Where spans go, under which name and
how many of them, is what its standard variables say: OTEL_EXPORTER_OTLP_ENDPOINT and others.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from math import isfinite
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvbraid.policy import Decision

MOST_WAITING: Final = 2048
"""Spans that wait to be sent."""

MOST_AT_ONCE: Final = 512
"""Spans of one message."""

EVERY_S: Final = 1.0
"""The longest time for which a span waits for others, in seconds."""

END_S: Final = 3.0
"""How long the end waits for what is being sent, in seconds."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_LOGGER: Final = logging.getLogger("kvbraid.tracing")


class DecisionSpans:
    """Makes a span of each decision; `counts` is told what becomes of them. Thread-safe."""

    def __init__(self, counts: Counter[str], exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._queue = SpanQueue(exporter or OTLPSpanExporter(), counts)
        self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("kvbraid")

    def now(self) -> int:
        """Return the time at which a span begins."""
        return time.time_ns()

    def note(self, decision: Decision, traceparent: str, began: int) -> None:
        """Make a span that ends now; it is of the trace that `traceparent` names, if it does."""
        parent = _PROPAGATOR.extract({"traceparent": traceparent}, Context())
        span = self._tracer.start_span("kvbraid.pick", parent, start_time=began)
        if span.is_recording():
            span.set_attributes(attributes(decision))
        span.end()

    def close(self) -> None:
        """Send what waits, for a limited time."""
        self._provider.shutdown()


def attributes(decision: Decision) -> dict[str, str | int | float]:
    """Return what a span says of a decision: no token of its prompt, and no name of a client."""
    pod, dp_rank = decision.rank
    terms = decision.chosen_terms()
    seconds: Mapping[str, float] = {} if terms is None else terms._asdict()
    told: dict[str, str | int | float] = {
        "kvbraid.request": decision.name,
        "kvbraid.model": decision.view.request.model,
        "kvbraid.pod": pod,
        "kvbraid.dp_rank": dp_rank,
        "kvbraid.state": decision.state.value,
        "kvbraid.prompt_tokens": len(decision.view.request.token_ids),
        "kvbraid.lower": decision.lower,
        "kvbraid.upper": decision.upper,
        "kvbraid.resumable": decision.resumable,
        "kvbraid.candidates": len(decision.costs),
        "kvbraid.policy": decision.policy.name,
        "kvbraid.knowledge": decision.knowledge,
    }
    if isfinite(decision.cost):
        told["kvbraid.cost"] = decision.cost
    return told | {f"kvbraid.term.{name}": each for name, each in seconds.items()}


class SpanQueue(SpanProcessor):
    """Passes spans on to an exporter, from a thread of its own."""

    def __init__(self, exporter: SpanExporter, counts: Counter[str]) -> None:
        self._exporter = exporter
        self._counts = counts
        self._lock = threading.Lock()
        self._waiting: deque[ReadableSpan] = deque()
        self._is_over = threading.Event()
        self._has_many = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbraid-tracing", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Let a span wait, or drop it."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._counts["dropped"] += 1
                return
            self._waiting.append(span)
            if len(self._waiting) >= MOST_AT_ONCE:
                self._has_many.set()

    def shutdown(self) -> None:
        """Send what waits; what does not arrive within END_S is dropped."""
        self._is_over.set()
        self._has_many.set()
        self._thread.join(END_S)
        self._exporter.shutdown()
        with self._lock:
            self._counts["dropped"] += len(self._waiting)
            self._waiting.clear()

    def check_integrity(self) -> None:
        """Assert that the queue is bounded. For tests."""
        assert len(self._waiting) <= MOST_WAITING

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._has_many.wait(EVERY_S)
            self._has_many.clear()
            while batch := self._take():
                self._send(batch)

    def _take(self) -> list[ReadableSpan]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # Decisions go on.
            _LOGGER.exception("spans could not be sent")
            is_sent = False
        with self._lock:
            self._counts["exported" if is_sent else "failed"] += len(batch)
