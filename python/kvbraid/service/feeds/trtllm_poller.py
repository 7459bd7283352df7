"""Follows an engine that keeps its events in a buffer: TensorRT-LLM's `/kv_cache_events`.

Reading empties the buffer, so exactly one `TrtllmPoller` may read it, and nothing else. What the
buffer dropped in the meantime shows as missing numbers (`events/buffered.py`).
"""

import contextlib
import threading
import time
from typing import Final

import httpx

from kvbraid.errors import InvalidValueError, one_line, shortened
from kvbraid.events.buffered import MAX_BODY_BYTES, BufferedReader
from kvbraid.ids import PodId, PodState
from kvbraid.service.closing import Closing
from kvbraid.service.feeds.backoff import Backoff
from kvbraid.service.feeds.rank_feed import Sink

_RETRY_MAX_S: Final = 5.0


class TrtllmPoller(Closing):
    """Empties the buffer of one pod again and again, in a thread of its own, until it is closed.

    The pod is `stale` until the first answer, and whenever the engine does not answer. Only
    the sink's own thread safety protects it from its other callers.

    Args:
        url: Where the engine gives its events away, as `http://10.0.0.9:8000/kv_cache_events`.
        pod: The pod that they belong to; it must be registered with the sink.
        sink: Where they go: a `FleetIndex`.
        dp_size: Number of data-parallel ranks; each is told when the engine does not answer.
        interval_s: Seconds from one answer to the next question.
        timeout_s: Seconds after which an answer is given up.

    Raises:
        InvalidValueError: The address is none of http, or a time is not above 0.
    """

    def __init__(
        self,
        url: str,
        pod: PodId,
        sink: Sink,
        *,
        dp_size: int = 1,
        interval_s: float = 0.1,
        timeout_s: float = 5.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidValueError(f"url is {shortened(url)}; expected http://HOST:PORT/PATH")
        if not (interval_s > 0 and timeout_s > 0):
            msg = f"interval_s is {interval_s}, timeout_s is {timeout_s}; both must be above 0"
            raise InvalidValueError(msg)
        self._url, self._pod, self._sink = url, pod, sink
        self._ranks = range(dp_size)
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._reader = BufferedReader()
        self._backoff = Backoff(_RETRY_MAX_S, calm_s=_RETRY_MAX_S)
        self._is_answered: bool | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbraid-drain", daemon=True)
        self._show(False, "the engine has not answered yet")
        self._thread.start()

    def close(self) -> None:
        """Stop asking; waits for an answer that is under way."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            with contextlib.suppress(Exception):  # The pod may be gone.
                self._show(False, one_line(f"no longer followed: {error}"))
            raise

    def _follow(self) -> None:
        with httpx.Client(timeout=self._timeout_s) as client:
            pause_s = 0.0
            while not self._closing.wait(pause_s):
                try:
                    body = self._body(client)
                except (httpx.HTTPError, OSError) as error:
                    self._show(False, one_line(f"{self._url}: {error or type(error).__name__}"))
                    pause_s = self._backoff.pause_s(time.monotonic())
                    continue
                self._apply(body)
                self._show(True)
                pause_s = self._interval_s

    def _body(self, client: httpx.Client) -> bytes:
        """Ask for what the buffer holds; a body that is too long is cut where that shows."""
        give_up_at = time.monotonic() + self._timeout_s
        body = bytearray()
        with client.stream("POST", self._url) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                body += piece
                if time.monotonic() > give_up_at:
                    raise httpx.ReadTimeout(f"no whole answer in {self._timeout_s} s")
                if len(body) > MAX_BODY_BYTES:
                    break
        return bytes(body)

    def _apply(self, body: bytes) -> None:
        drained = self._reader.read(body)
        for reason, count in drained.refused.items():
            for _ in range(count):
                self._sink.note_refused(self._pod, reason)
        payloads = list(drained.payloads)
        while payloads:
            applied = self._sink.apply_many(self._pod, payloads, budget_s=self._timeout_s)
            del payloads[: len(applied)]

    def _show(self, is_answered: bool, reason: str = "") -> None:
        if is_answered != self._is_answered:
            self._is_answered = is_answered
            state = PodState.EXACT if is_answered else PodState.STALE
            for rank in self._ranks:
                self._sink.set_state(self._pod, state, dp_rank=rank, reason=reason)
