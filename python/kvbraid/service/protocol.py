"""HTTP/1.1 for uvicorn, with a short cut for POST /v1/score.

A task, a queue and two awaits per request cost more than a score does. So a short score request
is collected here and answered from the parser's callback; whatever is unusual about it (long, too
large, pipelined behind another, closing, a slow reader) is handed to uvicorn's own path, which
calls the same endpoint. The short cut thus never decides anything that the endpoint does not.
"""

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from kvbraid.service.app import SCORE_PATH, Application
from kvbraid.service.routes import Answer, Call

_URL: Final = SCORE_PATH.encode()
_QUERY: Final = _URL + b"?"


class ScoreProtocol(HttpToolsProtocol):
    """One connection. `_chunks` is the body so far of a request on the short cut, else None."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app = config.app
        assert isinstance(app, Application)
        self._endpoint = app.score
        self._chunks: list[bytes] | None = None
        self._size = 0

    def on_headers_complete(self) -> None:
        """Take the short cut, or not."""
        if self._is_usual_score():
            self._chunks, self._size = [], 0
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, up to the limit."""
        if self._chunks is None:
            super().on_body(body)
            return
        self._chunks.append(body)
        self._size += len(body)
        if self._size > self._endpoint.body_limit:
            self._hand_over()

    def on_message_complete(self) -> None:
        """Answer at once when that is short."""
        if self._chunks is not None:
            call = self._call(b"".join(self._chunks))
            if self._endpoint.is_short(call):
                self._chunks = None
                self._write(self._endpoint.answer(call))
                self.on_response_complete()
                return
            self._hand_over()
        super().on_message_complete()

    def shutdown(self) -> None:
        """Let a request whose body is still arriving finish."""
        self._hand_over()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a request that will never be complete."""
        self._chunks = None
        super().connection_lost(exc)

    def _is_usual_score(self) -> bool:
        return (
            (self.url == _URL or self.url.startswith(_QUERY))
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and (self.cycle is None or self.cycle.response_complete)
            and int(self._header(b"content-length", b"0")) <= self._endpoint.body_limit
        )

    def _hand_over(self) -> None:
        """Give what was collected to uvicorn, as if it arrived now."""
        if self._chunks is not None:
            chunks, self._chunks = self._chunks, None
            super().on_headers_complete()
            for chunk in chunks:
                super().on_body(chunk)

    def _call(self, body: bytes) -> Call:
        return Call(body, self._header(b"content-type", b""), self.url[len(_QUERY) :])

    def _header(self, wanted: bytes, default: bytes) -> bytes:
        return next((value for name, value in self.headers if name == wanted), default)

    def _write(self, answer: Answer) -> None:
        head = b"%scontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (
            STATUS_LINE[answer.status],
            answer.content_type.encode(),
            len(answer.body),
        )
        self.transport.write(head + answer.body)
