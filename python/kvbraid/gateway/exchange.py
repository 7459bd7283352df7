"""One request on its way: what it waits for, since when, and how its wait is ended.

A request waits for its pod or for its client, never for both. Whoever sees that it has waited long
enough, or that its client has left, wakes it: its task is cancelled, and finds the reason here. So
no request needs a timer of its own.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from kvbraid.gateway.bodies import Body
from kvbraid.gateway.headers import Headers, request_id
from kvbraid.gateway.prompts import PROMPTS
from kvbraid.gateway.usage import Tail, WithoutUsage, with_usage
from kvbraid.ids import PodId
from kvbraid.service.http.app import Receive, Scope, Send
from kvbraid.service.http.connection import EXTENSION, Connection
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import RequestCounts
from kvbraid.service.picking import Picking
from kvbraid.service.requests import PickEvent, ReportBody
from kvbraid.service.rungs import Rungs

Wait: TypeAlias = Literal["turn", "first_byte", "next_byte"]
"""What a request can wait for: that a pod has room, and what it sends."""

Wake: TypeAlias = Literal["too_long", "no_event", "client_gone"]
"""Why a wait was ended before its time."""

_OTHER: Final = "other"  # Whatever a client writes there would be a label for ever.
_T = TypeVar("_T")


class WokenError(Exception):
    """A wait was ended: nothing came for too long, or for so long that its client is told."""

    def __init__(self, why: Wake) -> None:
        super().__init__(why)
        self.why = why


class Shared(NamedTuple):
    """What the requests of one gateway share."""

    limits: ConnectionLimits
    picking: Picking
    requests: RequestCounts

    def answers_of(self, path: str) -> Counter[int]:
        """Return the counts of answers by status, for a path."""
        method, route = ("POST", path) if path in PROMPTS else (_OTHER, _OTHER)
        return self.requests.of(method, route)


def _nothing() -> None:
    """Nobody waits for the end of a request that was never sent."""


class Exchange:
    """One request and its answer; made by the task that serves it.

    Attributes:
        given: The last header of each name.
        name: Its own, by which it is booked. `request_id` is what others call it.
        avoided: Pods that are not to be tried again.
        answers: How often requests like it were answered, by status.
        tries: How often a pod was asked.
        is_booked: Whether the router counts it as in flight.
        when_free: What is to be done when it no longer does.
        has_started: Whether the head of an answer has been sent.
        shown: What its client sees of a stream whose usage only we have asked for; else None.
        has_bytes: Whether its pod has sent any of the answer's body.
        waits: What it waits for, since `since`; None while it does not wait for a pod.
        heard: When a byte last came from the pod, or a comment went to the client.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, name: str, shared: Shared
    ) -> None:
        self.scope = scope
        self.send: Final = send
        self.headers: Headers = scope["headers"]
        self.given = dict(self.headers)
        self.name = name
        self.request_id = request_id(self.given, name)
        self.body = Body(receive, shared.limits)
        self.tail = Tail()
        self.shown: WithoutUsage | None = None
        self.avoided: set[PodId] = set()
        self.tries = 0
        self.is_booked = False
        self.when_free: Callable[[], None] = _nothing
        self.has_started = False
        self.has_bytes = False
        self.is_complete = False
        self.is_events = False
        self.answers = shared.answers_of(scope["path"])
        self.waits: Wait | None = None
        self.since = 0.0
        self.heard = 0.0
        self._picking = shared.picking
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # Every coroutine that runs is run by one.
        self._task = task
        self._woken: Wake | None = None
        own = scope["extensions"][EXTENSION]
        self._connection: Connection = own["connection"]
        self._cycle: RequestResponseCycle = own["cycle"]()  # It serves this request.
        self._connection.when_lost = self._lose

    def ask_for_usage(self) -> None:
        """Ask the pod for the usage of a stream, and keep it from the client.

        Raises:
            RefusalError: `overloaded`.
        """
        self.body.replace(with_usage(self.body.kept()))
        self.shown = WithoutUsage()

    async def wait(self, what: Wait, coming: Awaitable[_T]) -> _T:
        """Wait for a pod.

        Raises:
            WokenError: Somebody woke it, other than because the client has left.
        """
        self.waits = what
        self.since = self.heard = self._loop.time()
        return await self._wait(coming)

    async def wait_on(self, coming: Awaitable[_T]) -> _T:
        """Go on with a wait after the client was told that nothing has come."""
        self.waits = "next_byte"
        self.heard = self._loop.time()
        return await self._wait(coming)

    async def _wait(self, coming: Awaitable[_T]) -> _T:
        try:
            return await coming
        except asyncio.CancelledError:
            why = self._woken
            if why is None or why == "client_gone" or self.woken() is None:
                raise
            raise WokenError(why) from None
        finally:
            self.waits = None

    def report(
        self,
        event: PickEvent,
        cached_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """Tell the router what has become of the request, and what its engine counted."""
        told = ReportBody(
            pick=self.name,
            event=event,
            cached_tokens=cached_tokens,
            prompt_tokens=prompt_tokens,
        )
        self._picking.report(told)
        if event != "first_token":
            self.is_booked = False
            self.when_free()

    def rungs(self) -> Rungs | None:
        """Return what was known of the request when its pod was chosen."""
        return self._picking.rungs(self.name)

    def wake(self, why: Wake) -> None:
        """End whatever the request waits for."""
        if self._woken is None:
            self._task.cancel()
            self._woken = why
        elif why == "client_gone":
            self._woken = why

    def woken(self) -> Wake | None:
        """Say why the request was woken, and that it goes on; None if the server cancelled it."""
        why, self._woken = self._woken, None
        if why is None or self._task.uncancel() > 0:
            return None
        return why

    def cut(self) -> None:
        """Close the client's connection: that is how it learns that its answer has no end."""
        self.is_complete = True
        self._connection.cut(self._cycle)

    def end(self) -> None:
        """Release what the request holds here."""
        self._connection.when_lost = None
        self.body.release()

    def _lose(self) -> None:
        if not self.is_complete:
            self.wake("client_gone")
