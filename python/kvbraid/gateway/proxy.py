"""The face of the gateway: requests come in, are read and checked, go to a pod, and are answered.

Invariant: a request is booked from its choice until its end, whatever ends it. Nothing waits for a
time here: whoever has waited too long is woken by `sweep`, which the server calls.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Iterator
from itertools import count
from typing import Final

from kvbraid.errors import KvbraidError
from kvbraid.fleet.request import Request
from kvbraid.gateway.answering import Answerer
from kvbraid.gateway.choosing import Chooser
from kvbraid.gateway.counts import GatewayCounts
from kvbraid.gateway.exchange import Exchange, Shared, Wait
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.headers import MODEL, REQUEST_ID, as_text
from kvbraid.gateway.prompts import PROMPTS, Prompt, PromptReader, model_of
from kvbraid.gateway.sending import Sender
from kvbraid.gateway.upstream import PodError
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import (
    RETRY_AFTER,
    TOO_MANY_REQUESTS,
    ClientGoneError,
    Receive,
    Scope,
    Send,
)
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import RequestCounts
from kvbraid.service.registry import Service

_DOTS: Final = re.compile(r"/\.{1,2}(?:/|$)")
_MODEL: Final = MODEL.encode()
_logger: Final = logging.getLogger(__name__)


class Proxy:
    """The ASGI application that sends requests on. `counts` is for its metrics."""

    def __init__(
        self,
        service: Service,
        reader: PromptReader,
        options: ForwardingOptions,
        *,
        limits: ConnectionLimits,
        requests: RequestCounts,
        access: Access,
    ) -> None:
        self._reader = reader
        self._options = options
        self._limits_s: dict[Wait, float] = {
            "turn": options.queued_s,
            "first_byte": options.first_byte_s,
            "next_byte": options.silent_s,
        }
        self._shared = Shared(limits, service.picking, requests)
        self._exchanges: set[Exchange] = set()
        self._names = _names()
        self.fleet = Fleet(service, options)
        self.counts = GatewayCounts()
        self.chooser = Chooser(service, self.fleet, self.counts)
        self._sender = Sender(self.chooser, self.fleet, options, self.counts)
        self.queue = self._sender.queue
        self._answerer = Answerer(options, self.counts, access)

    @property
    def in_flight(self) -> int:
        """The number of requests that are being served."""
        return len(self._exchanges)

    def sweep(self, now: float) -> None:
        """Wake the requests that have waited too long, and end the rests that are over."""
        for exchange in list(self._exchanges):
            if exchange.waits is None:
                continue
            if now - exchange.since > self._limits_s[exchange.waits]:
                exchange.wake("too_long")
            elif (
                exchange.is_events
                and exchange.waits == "next_byte"
                and now - exchange.heard > self._options.comment_s
                and exchange.tail.ends_event()
            ):
                exchange.wake("no_event")
        self.fleet.end_rests(now)
        self.queue.look()

    async def close(self) -> None:
        """Close the connections to pods."""
        await self._sender.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send, name=next(self._names), shared=self._shared)
        self._exchanges.add(exchange)
        try:
            outcome = await self._serve(exchange)
        except asyncio.CancelledError:
            outcome = await self._give_up(exchange)
        finally:
            if exchange.is_booked:
                exchange.report("end" if exchange.has_bytes else "failed")
            exchange.end()
            self._exchanges.discard(exchange)
        self.counts.outcomes[outcome] += 1

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
        request = self._request(exchange, prompt)
        answered = await self._sender.open(exchange, prompt, request)
        try:
            await self._answerer.pass_on(exchange, answered)
        except PodError as error:
            self._sender.note_failure(exchange, answered.pod, error)
            await self._answerer.cut(exchange, error)
            return "cut"
        finally:
            answered.answer.close()
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
        kept = await body.read_whole(exchange.given)
        prompt = await self._reader.read(scope["path"], as_text(exchange.given), kept)
        if prompt.lacks_usage and self._options.include_usage:
            exchange.ask_for_usage()
        return prompt

    def _request(self, exchange: Exchange, prompt: Prompt) -> Request:
        """Return what the router is asked."""
        named = exchange.given.get(_MODEL, b"")
        request = self.chooser.request(prompt, named.decode("latin-1"))
        exchange.avoided |= self.fleet.lacking(request.lora)
        return request

    # ---- what a client is told without a pod ------------------------------------------------

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
        if refusal.status == TOO_MANY_REQUESTS:
            headers.append((b"retry-after", RETRY_AFTER))
        if not exchange.body.is_complete:  # Nobody reads the rest of it.
            headers.append((b"connection", b"close"))
        exchange.answers[refusal.status] += 1
        exchange.is_complete = True
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await exchange.send(start)
        await exchange.send({"type": "http.response.body", "body": body})
        return "refused"


def _names() -> Iterator[str]:
    """Yield names of requests that no other process has given."""
    run = os.urandom(6).hex()
    return (f"{run}-{number}" for number in count(1))
