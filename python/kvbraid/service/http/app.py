"""The ASGI application, built from the route table.

One `Endpoint` per route reads the body within its limit, runs the handler inline or on a thread,
and answers. Every error leaves this module in one JSON shape.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from anyio.to_thread import run_sync

from kvbraid.errors import KvbraidError
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.http.access import Access, Rules
from kvbraid.service.http.calls import Answer, Call, Context, TokenIds
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.events import Changes, pass_on
from kvbraid.service.http.metrics import Metrics
from kvbraid.service.http.openapi import document
from kvbraid.service.http.routes import ROUTES, Route
from kvbraid.service.registry import Service

SCORE_PATH: Final = "/v1/score"
SHORTCUTS: Final = (SCORE_PATH, "/v1/shard")
"""What a server can reach directly, by POST."""

_SCORE: Final = next(route for route in ROUTES if route.path == SCORE_PATH)
_logger: Final = logging.getLogger(__name__)
_DECISIVE: Final = frozenset(
    {b"authorization", b"content-length", b"content-type", b"host", b"origin"}
)
# The rest of a body that is refused while it arrives is not worth reading.
_LEAVE_THE_REST: Final = frozenset({"body_too_large", "overloaded", "shutting_down"})
TOO_MANY_REQUESTS: Final = 429
NOT_MODIFIED: Final = 304
RETRY_AFTER: Final = b"1"
"""In seconds, for answers of the status TOO_MANY_REQUESTS."""

_NO_ROUTE: Final = "other"  # Whatever a client writes there would be a label for ever.
_POD_PATH: Final = "/v1/pods/{id}"
_PODS: Final = _POD_PATH.removesuffix("{id}")
_SNAPSHOT: Final = "/snapshot"
_READING: Final = frozenset({"GET", "HEAD"})  # HEAD is GET, whose body the server leaves out.

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A", Answer, Answer | None)


class ClientGoneError(KvbraidError):
    """The client closed the connection before its body was complete; no answer is sent."""


class Endpoint:
    """One route: its body within its limit, its handler, its answer."""

    def __init__(self, route: Route, context: Context) -> None:
        self._route = route
        self._context = context
        self._connection_limits = context.connection_limits
        self._observe = context.metrics.score_latency.observe if route is _SCORE else None
        self._answers = context.metrics.requests.of(route.method, route.path)

    @property
    def body_limit(self) -> int:
        """The most bytes of a body."""
        return self._connection_limits.limits.body_bytes

    @property
    def rules(self) -> Rules:
        """By what it is decided who may call."""
        return self._context.access.rules

    def permit(self, given: Mapping[bytes, bytes]) -> Rules:
        """Return by which rules a request with these headers may call.

        Raises:
            RefusalError: It may not.
        """
        rules, origin = self.rules, given.get(b"origin")
        self._context.access.check(
            self._route.right, given.get(b"authorization", b""), given.get(b"host", b""), origin
        )
        return rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, pod: str) -> None:
        """Answer one HTTP request."""
        body, rules = bytearray(), self.rules
        try:
            call = await self._read(scope, receive, body, pod)
            at_once = self.answer_at_once(call)
            answer = at_once if at_once is not None else await _on_thread(self.answer, call)
        except ClientGoneError:
            return
        except RefusalError as error:
            answer = refused(error)
        except asyncio.CancelledError:
            answer = refused(RefusalError("shutting_down", "given up: the server ends"))
        finally:
            self._connection_limits.release(len(body))
        self.count(answer)
        with contextlib.suppress(asyncio.CancelledError):  # The server's end waits for no reader.
            if answer.stream is None:
                await send_answer(send, answer)
            else:
                # Under other rules the client has to ask again: its key may be revoked.
                await send_stream(scope, receive, send, answer, lambda: self.rules is rules)

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
            return refused(as_refusal(error))
        except Exception as error:
            _logger.exception("%s %s failed", self._route.method, self._route.path)
            return refused(RefusalError("internal", f"unexpected {type(error).__name__}"))
        if self._observe is not None and answer is not None:
            self._observe(time.perf_counter() - start_s)
        return answer

    async def _read(self, scope: Scope, receive: Receive, body: bytearray, pod: str) -> Call:
        given = once(scope["headers"])
        rules = self.permit(given)
        if self._route.body is not None or self._route.binary:
            self._check_length(int(given.get(b"content-length", b"0")))
            await self._read_body(receive, body)
            if rules is not self.rules:  # A key may have been revoked meanwhile.
                self.permit(given)
        return Call(
            bytes(body),
            given.get(b"content-type", b""),
            scope["query_string"],
            pod,
            given.get(b"if-none-match", b""),
            given.get(b"traceparent", b"").decode("latin-1"),
        )

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


def once(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name; a header that decides something may occur only once.

    Raises:
        RefusalError: `malformed_http`.
    """
    given = dict(headers)
    if len(given) != len(headers):
        for name, count in Counter(name for name, _ in headers).items():
            if count > 1 and name in _DECISIVE:
                message = f"{count} headers {name.decode()}; expected one"
                raise RefusalError("malformed_http", message)
    return given


def refused(error: RefusalError) -> Answer:
    """Return the answer that is a refusal."""
    return Answer(error.body(), error.status, close=error.code in _LEAVE_THE_REST)


async def send_answer(send: Send, answer: Answer, *, allow: str = "") -> None:
    """Send an answer; `allow` lists the methods of its path, where they are to be told."""
    headers = [(b"content-type", answer.content_type.encode()), *answer.headers]
    if answer.status != NOT_MODIFIED:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    if allow:
        headers.append((b"allow", allow.encode()))
    if answer.close:
        headers.append((b"connection", b"close"))
    if answer.status == TOO_MANY_REQUESTS:
        headers.append((b"retry-after", RETRY_AFTER))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def send_stream(
    scope: Scope, receive: Receive, send: Send, answer: Answer, may_go_on: Callable[[], bool]
) -> None:
    """Send an answer whose body has no length, while it may go on and somebody reads it."""
    assert answer.stream is not None
    headers = [(b"content-type", answer.content_type.encode()), *answer.headers]
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if scope["method"] != "HEAD":
            await pass_on(answer.stream, receive, partial(_send_part, send), may_go_on)
        await send({"type": "http.response.body"})
    finally:
        answer.stream.close()


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


class Application:
    """The ASGI application of a service whose feed is started and closed elsewhere.

    `routes` are those that it has. `token_ids` makes token ids of prompts, if anything does.
    `shortcuts` are the endpoints of those of SHORTCUTS that are routes, by their paths.
    """

    def __init__(
        self,
        service: Service,
        *,
        access: Access | None = None,
        routes: Sequence[Route] = ROUTES,
        token_ids: TokenIds | None = None,
    ) -> None:
        self.connection_limits = ConnectionLimits(service.limits)
        access = access or Access()
        service.in_force.keys = access.rows
        self.metrics = Metrics(service, self.connection_limits, access)
        self.events = Changes(service)
        context = Context(
            service,
            access,
            self.metrics,
            document(routes),
            self.connection_limits,
            self.events,
            token_ids,
        )
        self._requests = self.metrics.requests
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        for route in routes:
            methods = self._endpoints.setdefault(route.path, {})
            methods[route.method] = Endpoint(route, context)
        self.shortcuts = {
            path.encode(): self._endpoints[path]["POST"]
            for path in SHORTCUTS
            if path in self._endpoints
        }

    def sweep(self, now: float) -> None:
        """Look after what waits too long; the server calls this twice a second."""

    async def start(self) -> None:
        """Open what the application needs; the server calls this before it answers.

        Raises:
            InvalidValueError: An address cannot be listened on.
        """

    async def close(self) -> None:
        """Close what the application has opened; the server calls this when no request is left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        method = "GET" if scope["method"] in _READING else scope["method"]
        path, pod = _route_path(method, scope["path"])
        methods = self._endpoints.get(path, {})
        endpoint = methods.get(method)
        if endpoint is not None:
            await endpoint(scope, receive, send, pod=pod)
        else:
            await self.answer_other(scope, receive, send, methods=methods)

    async def answer_other(
        self, scope: Scope, receive: Receive, send: Send, *, methods: Collection[str]
    ) -> None:
        """Serve a request for which there is no route; its path has routes of these methods."""
        del receive
        code = "method_not_allowed" if methods else "not_found"
        refusal = RefusalError(code, f"{scope['method']} {scope['path']}")
        self._requests.of(_NO_ROUTE, _NO_ROUTE)[refusal.status] += 1
        allowed = {*methods, "HEAD"} if "GET" in methods else {*methods}
        await send_answer(send, refused(refusal), allow=", ".join(sorted(allowed)))


def _route_path(method: str, path: str) -> tuple[str, str]:
    """Return the path in the table of routes, and the pod that the request's path names.

    A pod's name may have any slashes. Nothing else of a pod is read under its path, so the last
    part of what GET asks for belongs to no name.
    """
    before, separator, pod = path.partition(_PODS)
    if before or not separator:
        return path, ""
    if method == "GET" and pod.endswith(_SNAPSHOT):
        return _POD_PATH + _SNAPSHOT, pod.removesuffix(_SNAPSHOT)
    return _POD_PATH, pod
