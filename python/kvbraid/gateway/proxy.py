"""Requests are sent on to the pods that the router chooses, and their answers come back.

Invariant: a request is booked from its choice until its end, whatever ends it, and has one pod at a
time. It is tried again only while its client has got nothing. Bytes are passed on as they come, and
nothing here reads them but the end of an answer, for its usage.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Final

from anyio.to_thread import run_sync
from yarl import URL

from kvbraid.errors import KvbraidError, NoRankError
from kvbraid.fleet.request import Request
from kvbraid.gateway.bodies import too_long
from kvbraid.gateway.exchange import Exchange, WokenError
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.headers import DP_RANK, EXPLAIN, MODEL, REQUEST_ID, to_pod
from kvbraid.gateway.prompts import Prompt, PromptReader, model_of
from kvbraid.gateway.upstream import Opened, Payload, PodError, Upstream
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.app import ClientGoneError, Receive, Scope, Send
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import RequestCounts
from kvbraid.service.registry import Service
from kvbraid.service.requests import PickEvent, ReportBody

PROMPTS: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"}
)
"""The paths whose bodies are prompts. Requests to others are sent on by load alone."""

RETRIED: Final = frozenset({502, 503, 504})
"""Statuses of pods that have not taken a request; it is worth asking another one."""

COMMENT: Final = b": waiting\n\n"
"""What an event stream's client gets while nothing comes: readers of events skip it."""

_DOTS: Final = re.compile(r"/\.{1,2}(?:/|$)")
_INLINE_TOKENS: Final = 32_768
_INLINE_RANKS: Final = 256
_MODEL: Final = MODEL.encode()
_OTHER: Final = "other"
_RETRY_AFTER: Final = b"1"
_logger: Final = logging.getLogger(__name__)


class Proxy:
    """The ASGI application that sends requests on.

    Attributes:
        outcomes: How requests ended: `answered`, `refused`, `client_gone`, `cut`, `shut_down`.
        failures: Failures of pods, by kind.
        retries: How many requests were sent to a pod again.
        unknown: Prompts without tokens, by reason.
        usage: What engines said of reused tokens: `counted`, `not_reported`, `other_prompt`.
    """

    def __init__(
        self,
        service: Service,
        reader: PromptReader,
        options: ForwardingOptions,
        *,
        limits: ConnectionLimits,
        requests: RequestCounts,
    ) -> None:
        self._service = service
        self._reader = reader
        self._options = options
        self._limits = limits
        self._requests = requests
        self._upstream = Upstream(options)
        self._exchanges: set[Exchange] = set()
        self._names = _names()
        self.fleet = Fleet(service, options)
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.retries = 0
        self.unknown: Counter[str] = Counter()
        self.usage: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """The number of requests that are being served."""
        return len(self._exchanges)

    def sweep(self, now: float) -> None:
        """Wake the requests that have waited too long, and end the rests that are over."""
        options = self._options
        for exchange in list(self._exchanges):
            if exchange.waits is None:
                continue
            is_first = exchange.waits == "first_byte"
            if now - exchange.since > (options.first_byte_s if is_first else options.silent_s):
                exchange.wake("too_long")
            elif (
                exchange.is_events
                and not is_first
                and now - exchange.heard > options.comment_s
                and exchange.tail.ends_event()
            ):
                exchange.wake("no_event")
        self.fleet.end_rests(now)

    async def close(self) -> None:
        """Close the connections to pods."""
        await self._upstream.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send, name=next(self._names), limits=self._limits)
        self._exchanges.add(exchange)
        try:
            outcome = await self._serve(exchange)
        except asyncio.CancelledError:
            outcome = await self._give_up(exchange)
        finally:
            if exchange.is_booked:
                self._report(exchange, "end" if exchange.has_bytes else "failed")
            exchange.end()
            self._exchanges.discard(exchange)
        self.outcomes[outcome] += 1

    async def _serve(self, exchange: Exchange) -> str:
        try:
            return await self._forward(exchange)
        except ClientGoneError:
            return "client_gone"
        except KvbraidError as error:
            return await self._refuse(exchange, as_refusal(error))
        except Exception as error:
            _logger.exception("a request failed")
            refusal = RefusalError("internal", f"unexpected {type(error).__name__}")
            return await self._refuse(exchange, refusal)

    async def _give_up(self, exchange: Exchange) -> str:
        if exchange.woken() == "client_gone":
            return "client_gone"
        with contextlib.suppress(asyncio.CancelledError):  # The server's end waits for no reader.
            await self._refuse(
                exchange, RefusalError("shutting_down", "given up: the server ends")
            )
        return "shut_down"

    async def _forward(self, exchange: Exchange) -> str:
        self._check(exchange)
        prompt = await self._read(exchange)
        opened = await self._open(exchange, prompt, self._request(exchange, prompt))
        try:
            await self._pass_on(exchange, opened)
        except PodError as error:
            self._note_failure(exchange, opened.pod, error)
            await self._cut(exchange, error)
            return "cut"
        finally:
            opened.answer.close()
        return "answered"

    # ---- what a request asks ---------------------------------------------------------------

    def _check(self, exchange: Exchange) -> None:
        """Refuse what is never sent on."""
        scope, limit = exchange.scope, self._options.requests
        if len(self._exchanges) > limit:
            raise RefusalError("too_many_requests", f"{limit} requests are in flight")
        path: str = scope["path"]
        is_plain = scope["raw_path"].isascii() and not _DOTS.search(path)
        if not is_plain or not path.startswith(self._options.paths):
            raise RefusalError("not_found", f"{scope['method']} {path}")
        if scope["http_version"] == "1.0":  # It has no way to mark the end of a stream.
            raise RefusalError("http_version", "the request is HTTP/1.0")

    async def _read(self, exchange: Exchange) -> Prompt:
        scope, body = exchange.scope, exchange.body
        if scope["method"] != "POST" or scope["path"] not in PROMPTS:
            await body.read(self._options.kept_bytes)
            model = model_of(body.kept()) if body.is_complete else ""
            return Prompt(model=model, why_no_tokens="not_a_prompt")
        limit = self._limits.limits.body_bytes
        given = exchange.given
        length = int(given.get(b"content-length", b"0"))
        if length > limit:  # Before a client that asks first has sent it.
            raise too_long(length, limit)
        await body.read(limit)
        if len(body) > limit:
            raise too_long(len(body), limit)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()
        }
        return await self._reader.read(scope["path"], headers, body.kept())

    def _request(self, exchange: Exchange, prompt: Prompt) -> Request:
        """Return what the router is asked."""
        named = exchange.given.get(_MODEL, b"")
        model, adapter = self.fleet.find_model(named.decode("latin-1") or prompt.model)
        tokens, why = prompt.token_ids, prompt.why_no_tokens
        if tokens is not None and len(tokens) > self._service.limits.tokens:
            tokens, why = None, "too_many_tokens"
        if tokens is None:
            self.unknown[why] += 1
        return Request(
            model=model,
            token_ids=() if tokens is None else tokens,
            lora=prompt.lora or adapter,
            cache_salt=prompt.cache_salt,
            extra_key=prompt.extra_key,
        )

    # ---- a pod, and its answer -------------------------------------------------------------

    async def _open(self, exchange: Exchange, prompt: Prompt, request: Request) -> "_Answered":
        """Return the first answer that is worth sending on."""
        failed: PodError | None = None
        while True:
            try:
                decision = await self._choose(exchange, prompt, request)
            except NoRankError:
                if failed is None:
                    raise
                raise _told(failed, exchange.tries) from None
            pod, _ = decision.rank
            exchange.tries += 1
            try:
                answer = await self._ask(exchange, decision)
            except PodError as error:
                self._note_failure(exchange, pod, error)
                if not self._may_try_again(exchange, request.model, pod, error):
                    raise _told(error, exchange.tries) from None
                failed = error
                continue
            self.fleet.note_answer(pod)
            if answer.status in RETRIED and self._may_try_again(exchange, request.model, pod):
                answer.close()
                self._report(exchange, "failed")
                failed = PodError("other", f"pod {pod} answered {answer.status}")
                continue
            return _Answered(decision, answer)

    async def _choose(self, exchange: Exchange, prompt: Prompt, request: Request) -> Decision:
        picking, name = self._service.picking, exchange.name

        def choose() -> Decision:
            return picking.choose(
                name,
                request,
                candidates=self.fleet.candidates(exchange.avoided),
                session=prompt.session,
                priority=prompt.priority,
            )

        is_short = (
            len(request.token_ids) <= _INLINE_TOKENS and self._service.num_ranks <= _INLINE_RANKS
        )
        if is_short:
            decision = choose()
        else:
            chosen = asyncio.ensure_future(run_sync(choose))
            try:
                decision = await asyncio.shield(chosen)
            except asyncio.CancelledError:  # The thread goes on, and books what nobody wants.
                chosen.add_done_callback(lambda _: self._report(exchange, "failed"))
                raise
        exchange.is_booked = True
        return decision

    async def _ask(self, exchange: Exchange, decision: Decision) -> Opened:
        pod, dp_rank = decision.rank
        target = self.fleet.target(pod)
        if target is None:
            raise PodError("other", f"pod {pod} was removed")
        scope, headers = exchange.scope, to_pod(exchange.headers)
        headers.append((REQUEST_ID.decode(), exchange.request_id.decode()))
        if target.num_ranks > 1:
            headers.append((DP_RANK, str(dp_rank)))
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = URL(target.url + (scope["raw_path"] + query).decode("latin-1"), encoded=True)
        payload = self._payload(exchange, headers)
        coming = self._upstream.open(scope["method"], url, headers, payload)
        try:
            return await exchange.wait("first_byte", coming)
        except WokenError:
            told = f"no byte within {self._options.first_byte_s:g} s"
            raise PodError("no_first_byte", f"pod {pod}: {told}") from None
        except PodError as error:
            if exchange.body.is_lost:
                raise ClientGoneError from None
            raise PodError(error.failure, f"pod {pod}: {error}") from None

    def _payload(self, exchange: Exchange, headers: list[tuple[str, str]]) -> Payload:
        """Return the body to send; one that is long, or still arrives, goes out in pieces."""
        body = exchange.body
        if body.is_complete and len(body) <= self._options.kept_bytes:
            return body.kept() or None
        length = exchange.given.get(b"content-length")
        if length is not None:
            headers.append(("content-length", length.decode("ascii")))
        return body.pieces()

    def _may_try_again(
        self, exchange: Exchange, model: str, pod: PodId, error: PodError | None = None
    ) -> bool:
        """Whether the body is still there, and another pod; note that this one is avoided."""
        body, options = exchange.body, self._options
        is_kept = body.is_complete and len(body) <= options.kept_bytes
        if not is_kept or exchange.tries >= options.attempts:
            return False
        if self.fleet.has_other(model, {*exchange.avoided, pod}):
            exchange.avoided.add(pod)
        elif error is None or error.failure != "disconnected":
            return False
        # A pod may close a connection at the moment at which a request comes: ask it once more.
        self.retries += 1
        return True

    # ---- what comes back -------------------------------------------------------------------

    async def _pass_on(self, exchange: Exchange, opened: "_Answered") -> None:
        answer, chunk = opened.answer, opened.answer.first
        exchange.body.release()
        is_well = answer.status < 400
        if is_well and chunk:
            self._report(exchange, "first_token")
            exchange.has_bytes = True
        exchange.is_events = answer.is_events
        self._count(exchange, answer.status)
        headers = [*answer.headers, (REQUEST_ID, exchange.request_id)]
        if EXPLAIN in exchange.given and self._options.tells:
            headers += _explained(opened.decision)
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await exchange.send(start)
        exchange.has_started = True
        while True:
            exchange.tail.keep(chunk)
            is_last = answer.is_complete()
            if is_last:  # The client may ask again as soon as it has this.
                self._end(exchange, opened, is_well=is_well)
                exchange.is_complete = True
            await exchange.send(
                {"type": "http.response.body", "body": chunk, "more_body": not is_last}
            )
            if is_last:
                return
            chunk = await self._next(exchange, answer)

    async def _next(self, exchange: Exchange, answer: Opened) -> bytes:
        try:
            return await exchange.wait("next_byte", answer.read())
        except WokenError as woken:
            why = woken.why
        while why == "no_event":
            await exchange.send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            try:
                return await exchange.wait_on(answer.read())
            except WokenError as woken:
                why = woken.why
        raise PodError("silent", f"no byte within {self._options.silent_s:g} s")

    def _end(self, exchange: Exchange, opened: "_Answered", *, is_well: bool) -> None:
        if not is_well:
            self._report(exchange, "failed")  # The engine did not take it.
            return
        prompt, cached = exchange.tail.usage()
        num_tokens = len(opened.decision.view.request.token_ids)
        if not num_tokens or cached is None:
            said = "not_reported" if num_tokens else "unknown_prompt"
            cached = None
        elif prompt not in (None, num_tokens) or cached > num_tokens:
            said, cached = "other_prompt", None
        else:
            said = "counted"
        self.usage[said] += 1
        self._report(exchange, "end", cached)

    async def _cut(self, exchange: Exchange, error: PodError) -> None:
        """End an answer whose end does not come."""
        self._report(exchange, "failed")
        if exchange.is_events and exchange.tail.ends_event():
            event = b"data: " + RefusalError("pod_failed", str(error)).body() + b"\n\n"
            await exchange.send({"type": "http.response.body", "body": event, "more_body": True})
        exchange.cut()

    async def _refuse(self, exchange: Exchange, refusal: RefusalError) -> str:
        """Answer with an error, or end an answer that has begun."""
        if exchange.has_started:
            exchange.cut()
            return "cut"
        body = refusal.body()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (REQUEST_ID, exchange.request_id),
        ]
        if refusal.status == 429:
            headers.append((b"retry-after", _RETRY_AFTER))
        if not exchange.body.is_complete:  # The rest of it is not worth reading.
            headers.append((b"connection", b"close"))
        self._count(exchange, refusal.status)
        exchange.is_complete = True
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await exchange.send(start)
        await exchange.send({"type": "http.response.body", "body": body})
        return "refused"

    # ---- what is noted ---------------------------------------------------------------------

    def _report(self, exchange: Exchange, event: PickEvent, cached: int | None = None) -> None:
        told = ReportBody(pick=exchange.name, event=event, cached_tokens=cached)
        self._service.picking.report(told)
        if event != "first_token":
            exchange.is_booked = False

    def _note_failure(self, exchange: Exchange, pod: PodId, error: PodError) -> None:
        self.failures[error.failure] += 1
        self.fleet.note_failure(pod, str(error), now=asyncio.get_running_loop().time())
        if exchange.is_booked and not exchange.has_started:
            self._report(exchange, "failed")

    def _count(self, exchange: Exchange, status: int) -> None:
        path = exchange.scope["path"]
        method, route = ("POST", path) if path in PROMPTS else (_OTHER, _OTHER)
        self._requests.of(method, route)[status] += 1


class _Answered:
    """An answer, and the decision that led to it."""

    def __init__(self, decision: Decision, answer: Opened) -> None:
        self.decision = decision
        self.answer = answer

    @property
    def pod(self) -> PodId:
        return self.decision.rank[0]


def _names() -> Iterator[str]:
    """Yield names of requests that no other process has given."""
    run = os.urandom(6).hex()
    return (f"{run}-{number}" for number in count(1))


def _explained(decision: Decision) -> list[tuple[bytes, bytes]]:
    pod, dp_rank = decision.rank
    return [
        (b"x-kvbraid-pod", pod.encode()),
        (b"x-kvbraid-dp-rank", str(dp_rank).encode()),
        (b"x-kvbraid-predicted", b"%d-%d" % (decision.lower, decision.upper)),
    ]


def _told(error: PodError, tries: int) -> RefusalError:
    """Return what the client is told when no pod has answered."""
    code = "pod_silent" if error.failure == "no_first_byte" else "pod_failed"
    more = f"; {tries} tries" if tries > 1 else ""
    return RefusalError(code, f"{error}{more}")
