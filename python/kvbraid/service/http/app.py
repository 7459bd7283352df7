"""The ASGI application, built from the route table.

One `Endpoint` per route reads the body within its limit, runs the handler inline or on a thread,
and answers. Every error leaves this module in one JSON shape. POST /v1/score reaches its endpoint
before routing and before any middleware.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, ParamSpec, TypeVar

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from kvbraid.errors import KvbraidError
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.http.access import Access
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import Metrics, Requests
from kvbraid.service.http.openapi import document
from kvbraid.service.http.routes import ROUTES, Answer, Call, Context, Route
from kvbraid.service.registry import Service

SCORE_PATH: Final = "/v1/score"
_SCORE: Final = next(route for route in ROUTES if route.path == SCORE_PATH)
_logger: Final = logging.getLogger(__name__)
_DECISIVE: Final = frozenset(
    {b"authorization", b"content-length", b"content-type", b"host", b"origin"}
)
# The rest of a body that is refused while it arrives is not worth reading.
_LEAVE_THE_REST: Final = frozenset({"body_too_large", "overloaded", "shutting_down"})
_NO_ROUTE: Final = "other"  # Whatever a client writes there would be a label for ever.
_HTTP_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A", Answer, Answer | None)


class ClientGoneError(KvbraidError):
    """The client closed the connection before its body was complete; no answer is sent."""


class Endpoint:
    """One route as an ASGI application."""

    def __init__(self, route: Route, context: Context) -> None:
        self._route = route
        self._context = context
        self._connection_limits = context.connection_limits
        self.body_limit = context.service.limits.body_bytes
        self._observe = context.metrics.score_latency.observe if route is _SCORE else None
        self._answers = context.metrics.requests.of(route.method, route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        body = bytearray()
        try:
            call = await self._read(scope, receive, body)
            at_once = self.answer_at_once(call)
            answer = at_once if at_once is not None else await _on_thread(self.answer, call)
        except ClientGoneError:
            return
        except RefusalError as error:
            answer = _refused(error)
        except asyncio.CancelledError:
            answer = _refused(RefusalError("shutting_down", "given up: the server ends"))
        finally:
            self._connection_limits.release(len(body))
        self.count(answer)
        with contextlib.suppress(asyncio.CancelledError):  # The server's end waits for no reader.
            await _send(send, answer)

    def answer_at_once(self, call: Call) -> Answer | None:
        """Answer on the event loop's own thread; None if the answer would have to wait."""
        return self._run(self._route.at_once, call)

    def count(self, answer: Answer) -> None:
        """Count an answer that is about to be sent; on the event loop's thread only."""
        self._answers[answer.status] += 1

    def answer(self, call: Call) -> Answer:
        """Run the handler; every error becomes an answer, and an unexpected one is also logged."""
        return self._run(self._route.handler, call)

    def _run(self, handler: Callable[[Context, Call], _A], call: Call) -> _A | Answer:
        start_s = time.perf_counter()
        try:
            answer = handler(self._context, call)
        except KvbraidError as error:
            return _refused(as_refusal(error))
        except Exception as error:
            _logger.exception("%s %s failed", self._route.method, self._route.path)
            return _refused(RefusalError("internal", f"unexpected {type(error).__name__}"))
        if self._observe is not None and answer is not None:
            self._observe(time.perf_counter() - start_s)
        return answer

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> Call:
        given = _once(scope["headers"])
        if self._route.changes:
            origin, host = given.get(b"origin"), given.get(b"host", b"")
            self._context.access.check(given.get(b"authorization", b""), host, origin)
        if self._route.body is not None:
            self._check_length(int(given.get(b"content-length", b"0")))
            await self._read_body(receive, body)
        pod = scope.get("path_params", {}).get("id", "")
        return Call(bytes(body), given.get(b"content-type", b""), scope["query_string"], pod)

    async def _read_body(self, receive: Receive, body: bytearray) -> None:
        """Read the whole body, at most up to the limit."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            piece = message.get("body", b"")
            self._check_length(len(body) + len(piece))
            self._connection_limits.hold(len(piece))
            body += piece
            if not message.get("more_body", False):
                return

    def _check_length(self, length: int) -> None:
        if length > self.body_limit:
            raise RefusalError("body_too_large", f"{length} bytes; limit {self.body_limit}")


async def _on_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run on a worker thread; a cancelled request does not wait for it."""
    return await run_sync(partial(call, *args, **kwargs), abandon_on_cancel=True)


def _once(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name; a header that decides something may occur only once."""
    given = dict(headers)
    if len(given) != len(headers):
        for name, count in Counter(name for name, _ in headers).items():
            if count > 1 and name in _DECISIVE:
                message = f"{count} headers {name.decode()}; expected one"
                raise RefusalError("malformed_http", message)
    return given


def _refused(error: RefusalError) -> Answer:
    return Answer(error.body(), error.status, close=error.code in _LEAVE_THE_REST)


async def _send(send: Send, answer: Answer) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
    ]
    if answer.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class Application:
    """The ASGI application of a service whose feed is started and closed elsewhere.

    `score` is the endpoint of SCORE_PATH, for a server that can reach it directly.
    """

    def __init__(self, service: Service, *, access: Access | None = None) -> None:
        self.connection_limits = ConnectionLimits(service.limits)
        metrics = Metrics(service, self.connection_limits)
        context = Context(
            service, access or Access(), metrics, document(ROUTES), self.connection_limits
        )
        endpoints = [(route, Endpoint(route, context)) for route in ROUTES]
        self.score = next(endpoint for route, endpoint in endpoints if route is _SCORE)
        self._starlette = Starlette(
            routes=[
                StarletteRoute(
                    route.path.replace("{id}", "{id:path}"), endpoint, methods=[route.method]
                )
                for route, endpoint in endpoints
            ],
            exception_handlers={HTTPException: partial(_routing_error, metrics.requests)},
        )
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope.get("path") == SCORE_PATH and scope["method"] == _SCORE.method:
            await self.score(scope, receive, send)
        else:
            await self._starlette(scope, receive, send)


async def _routing_error(requests: Requests, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "internal")
    refusal = RefusalError(code, f"{request.method} {request.scope['path']}")
    requests.of(_NO_ROUTE, _NO_ROUTE)[refusal.status] += 1
    headers = {"content-type": "application/json", **(error.headers or {})}
    return Response(refusal.body(), refusal.status, headers)
