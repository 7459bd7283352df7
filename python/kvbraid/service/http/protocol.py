"""HTTP/1.1 for uvicorn, with a shortcut for POST /v1/score and what fronts ask.

A task, a queue and two awaits per request cost more than a score does. So a short request is
collected here and answered from the parser's callback. An unusual request (long, too large,
pipelined after another, closing, with a slow reader) is passed to uvicorn's own path, which calls
the same endpoint. So the shortcut never decides anything that the endpoint does not.
"""

from typing import Any

from kvbraid.service.errors import RefusalError
from kvbraid.service.http.access import Rules
from kvbraid.service.http.calls import Call
from kvbraid.service.http.connection import Connection


class ScoreProtocol(Connection):
    """One connection. `_body`: the part that has arrived of a request on the shortcut, or None."""

    def __init__(self, *given: Any, **more: Any) -> None:  # noqa: ANN401 - passed on.
        super().__init__(*given, **more)
        self._endpoint = next(iter(self._application.shortcuts.values()))
        self._query = b""
        self._body: bytes | bytearray | None = None
        self._content_type = b""
        self._rules: Rules | None = None  # By which the request may call.

    def begin_request(self) -> None:
        """Take the shortcut, or not."""
        if self._is_usual():
            self._body = b""
        else:
            super().begin_request()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, up to the limit."""
        if self._body is None:
            super().on_body(body)
            return
        self._connection_limits.hold(len(body))
        if not self._body:
            self._body = body
        else:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += body
        if len(self._body) > self._endpoint.body_limit:
            self._hand_over()

    def on_message_complete(self) -> None:
        """Answer at once if that is quick."""
        if self._body is not None:
            call = Call(bytes(self._body), self._content_type, self._query)
            is_permitted = self._rules is self._endpoint.rules
            answer = self._endpoint.answer_at_once(call) if is_permitted else None
            if answer is not None:
                self._forget()
                self._endpoint.count(answer)
                self.write(answer)
                self.await_next_request()
                return
            self._hand_over()
        super().on_message_complete()

    def shutdown(self) -> None:
        """Let a request whose body is still arriving finish."""
        self._hand_over()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a request that will never be complete."""
        self._forget()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Forget a request that is refused while it arrives."""
        self._forget()
        super().leave()

    def _is_usual(self) -> bool:
        path, _, self._query = self.url.partition(b"?")
        endpoint = self._application.shortcuts.get(path)
        self._endpoint = endpoint or self._endpoint
        return (
            endpoint is not None
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and (self.cycle is None or self.cycle.response_complete)
            and self._has_usual_headers()
        )

    def _has_usual_headers(self) -> bool:
        """Whether it may call, no header occurs twice, and the body is within its limit."""
        given = dict(self.headers)
        self._content_type = given.get(b"content-type", b"")
        length = int(given.get(b"content-length", b"0"))
        try:
            self._rules = self._endpoint.permit(given)
        except RefusalError:
            return False  # The endpoint itself says so.
        return len(given) == len(self.headers) and length <= self._endpoint.body_limit

    def _hand_over(self) -> None:
        """Pass what was collected to uvicorn, as if it arrived now."""
        if self._body is not None:
            body = bytes(self._body)
            self._forget()
            super().begin_request()
            super().on_body(body)

    def _forget(self) -> None:
        if self._body is not None:
            self._connection_limits.release(len(self._body))
            self._body = None
