"""One answer comes back: bytes are passed on as they come, and the router learns how it went.

Invariant: only the last bytes of an answer are kept, and an answer is read only as fast as its
client takes it. An answer that breaks off never looks complete.
"""

from typing import Final

from kvbraid.gateway.counts import GatewayCounts
from kvbraid.gateway.exchange import Exchange, WokenError
from kvbraid.gateway.headers import EXPLAIN, REQUEST_ID
from kvbraid.gateway.sending import Answered
from kvbraid.gateway.upstream import Opened, PodError
from kvbraid.gateway.usage import delivered
from kvbraid.policy import Decision
from kvbraid.service.errors import RefusalError
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.rungs import Rungs

COMMENT: Final = b": waiting\n\n"
"""What an event stream's client gets while nothing comes: readers of events skip it."""


_FIXED: Final = frozenset({b"content-length", b"content-encoding"})


class Answerer:
    """Passes on the answers of one gateway."""

    def __init__(self, options: ForwardingOptions, counts: GatewayCounts, access: Access) -> None:
        self._options = options
        self._access = access
        self._counts = counts

    def _tells(self) -> bool:
        """Whether clients may know what pods hold; the key that they have is their engine's."""
        return self._options.tells and self._access.is_open("explain")

    async def pass_on(self, exchange: Exchange, opened: Answered) -> None:
        """Send an answer to its client, and report to the router how it went.

        Raises:
            PodError: The answer broke off; its client has a part of it.
        """
        answer, chunk = opened.answer, opened.answer.first
        exchange.body.release()
        is_well = answer.status < 400
        if is_well and chunk:
            exchange.report("first_token")
            exchange.has_bytes = True
        exchange.is_events = answer.is_events
        if not answer.is_events or not _FIXED.isdisjoint(dict(answer.headers)):
            exchange.shown = None  # Nothing can be taken out of it.
        exchange.answers[answer.status] += 1
        headers = [*answer.headers, (REQUEST_ID, exchange.request_id)]
        if EXPLAIN in exchange.given and self._tells():
            headers += _explained(opened.decision, exchange.rungs())
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await exchange.send(start)
        exchange.has_started = True
        while True:
            exchange.tail.keep(chunk)
            is_last = answer.is_complete()
            if is_last:  # The client may ask again as soon as it has this.
                self._end(exchange, opened, is_well=is_well)
                exchange.is_complete = True
            if exchange.shown is not None:
                chunk = exchange.shown.take(chunk, is_last=is_last)
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

    def _end(self, exchange: Exchange, opened: Answered, *, is_well: bool) -> None:
        if not is_well:
            exchange.report("failed")  # The engine did not take it.
            return
        num_tokens = len(opened.decision.view.request.token_ids)
        found = delivered(exchange.tail.usage(), num_tokens)
        self._counts.usage[found.said] += 1
        exchange.report("end", found.cached_tokens, found.prompt_tokens)

    async def cut(self, exchange: Exchange, error: PodError) -> None:
        """End an answer whose end does not come."""
        if exchange.is_events and exchange.tail.ends_event():
            event = b"data: " + RefusalError("pod_failed", str(error)).body() + b"\n\n"
            await exchange.send({"type": "http.response.body", "body": event, "more_body": True})
        exchange.cut()


def _explained(decision: Decision, rungs: Rungs | None) -> list[tuple[bytes, bytes]]:
    pod, dp_rank = decision.rank
    told = [
        (b"x-kvbraid-pod", pod.encode()),
        (b"x-kvbraid-dp-rank", str(dp_rank).encode()),
        (b"x-kvbraid-predicted", b"%d-%d" % (decision.lower, decision.upper)),
    ]
    if rungs is not None:
        names = ("prompt", "seen", "best", "chosen", "resumable")
        known = {name: getattr(rungs, name) for name in names}
        ladder = ", ".join(f"{name}={it}" for name, it in known.items() if it is not None)
        told.append((b"x-kvbraid-ladder", ladder.encode()))
    return told
