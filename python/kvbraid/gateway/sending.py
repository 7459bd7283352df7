"""One request goes out: a pod is chosen, asked, and another one if it fails before its first byte.

Invariant: a request has at most one booking and one pod at a time. Nothing has been sent to its
client when it is tried again, and its body is still there.
"""

import asyncio
from functools import partial
from typing import Final

from yarl import URL

from kvbraid.errors import NoRankError
from kvbraid.fleet.request import Request
from kvbraid.gateway.choosing import Chooser
from kvbraid.gateway.counts import GatewayCounts
from kvbraid.gateway.exchange import Exchange, WokenError
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.headers import DP_RANK, REQUEST_ID, to_pod
from kvbraid.gateway.prompts import Prompt
from kvbraid.gateway.queue import Line, RequestQueue
from kvbraid.gateway.upstream import Opened, Payload, PodError, Upstream
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.errors import RefusalError
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.app import ClientGoneError

RETRIED: Final = frozenset({502, 503, 504})
"""Statuses of pods that have not taken a request; it is worth asking another one."""


class Answered:
    """An answer, and the decision that led to it."""

    def __init__(self, decision: Decision, answer: Opened) -> None:
        self.decision = decision
        self.answer = answer

    @property
    def pod(self) -> PodId:
        """Whose answer it is."""
        return self.decision.rank[0]


class Sender:
    """Sends the requests of one gateway; `queue` has those for which no pod has room."""

    def __init__(
        self, chooser: Chooser, fleet: Fleet, options: ForwardingOptions, counts: GatewayCounts
    ) -> None:
        self._chooser = chooser
        self._fleet = fleet
        self._options = options
        self._counts = counts
        self._upstream = Upstream(options)
        self.queue = RequestQueue(options)

    async def close(self) -> None:
        """Close the connections to pods."""
        await self._upstream.close()

    async def open(self, exchange: Exchange, prompt: Prompt, request: Request) -> Answered:
        """Return the first answer that is worth sending on.

        Raises:
            RefusalError: `pod_failed` or `pod_silent`: there is none; `too_many_requests`: all
                pods were full for too long.
            NoRankError: No pod may get the request.
        """
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
                self.note_failure(exchange, pod, error)
                if not self._may_try_again(exchange, request.model, pod, error):
                    raise _told(error, exchange.tries) from None
                failed = error
                continue
            self._fleet.note_answer(pod)
            if answer.status in RETRIED and self._may_try_again(exchange, request.model, pod):
                answer.close()
                exchange.report("failed")
                failed = PodError("other", f"pod {pod} answered {answer.status}")
                continue
            return Answered(decision, answer)

    async def _choose(self, exchange: Exchange, prompt: Prompt, request: Request) -> Decision:
        num_bytes = len(exchange.body)
        decision = await self.queue.send(
            exchange,
            Line(request.model, frozenset(exchange.avoided)),
            lambda: self._chooser.choose(
                exchange.name,
                prompt,
                request,
                avoided=exchange.avoided,
                num_bytes=num_bytes,
                unwanted=lambda: exchange.report("failed"),
                may_overfill=False,
            ),
            priority=prompt.priority,
            num_bytes=num_bytes,
        )
        exchange.is_booked = True
        exchange.when_free = partial(self.queue.freed, request.model, decision.rank[0])
        return decision

    async def _ask(self, exchange: Exchange, decision: Decision) -> Opened:
        pod, dp_rank = decision.rank
        target = self._fleet.target(pod)
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
            told = str(len(body)) if body.is_complete else length.decode("ascii")
            headers.append(("content-length", told))
        return body.pieces()

    def _may_try_again(
        self, exchange: Exchange, model: str, pod: PodId, error: PodError | None = None
    ) -> bool:
        """Whether the body is still there, and another pod; note that this one is avoided."""
        body, options = exchange.body, self._options
        is_kept = body.is_complete and len(body) <= options.kept_bytes
        if not is_kept or exchange.tries >= options.attempts:
            return False
        if self._fleet.has_other(model, {*exchange.avoided, pod}):
            exchange.avoided.add(pod)
        elif error is None or error.failure != "disconnected":
            return False
        # A pod may close a connection at the moment at which a request comes: ask it once more.
        self._counts.retries += 1
        return True

    def note_failure(self, exchange: Exchange, pod: PodId, error: PodError) -> None:
        """Count a failure of a pod, before its answer or in the middle of it."""
        self._counts.failures[error.failure] += 1
        self._fleet.note_failure(pod, str(error), now=asyncio.get_running_loop().time())
        if exchange.is_booked:
            exchange.report("failed")


def _told(error: PodError, tries: int) -> RefusalError:
    """Return what the client is told when no pod has answered."""
    code = "pod_silent" if error.failure == "no_first_byte" else "pod_failed"
    more = f"; {tries} tries" if tries > 1 else ""
    return RefusalError(code, f"{error}{more}")
