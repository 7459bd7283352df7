"""The gateway's ASGI application: the service's own routes, and everything else to a pod.

`GET /v1/models` answers in the form of the OpenAI API, from what is registered: no pod is asked,
so a silent one delays nothing.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from kvbraid.gateway.directions import DIRECTIONS_PATH, Directions
from kvbraid.gateway.ends import hear
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.metrics import ProxyMetrics
from kvbraid.gateway.polling import LoadPoller
from kvbraid.gateway.prompts import PromptReader, token_ids_of
from kvbraid.gateway.proxy import Proxy
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application, Receive, Scope, Send
from kvbraid.service.http.calls import Answer, Call, Context
from kvbraid.service.http.routes import ROUTES, Route
from kvbraid.service.registry import Service

MODELS_PATH: Final = "/v1/models"
PUBLIC: Final = frozenset({"/healthz", "/readyz", MODELS_PATH})
"""The routes that tell nothing of what pods hold."""


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model or adapter, as the OpenAI API has it; `parent` is an adapter's model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "kvbraid"
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/models: models and adapters with at least one registered pod, sorted."""

    object: str = "list"
    data: list[ModelRow]


def models_answer(fleet: Fleet) -> bytes:
    """Return the body of the answer to GET /v1/models."""
    found = sorted(fleet.models().items())
    return msgspec.json.encode(ModelList(data=[ModelRow(id=it, parent=of) for it, of in found]))


class Gateway(Application):
    """The application of a service that also forwards requests to its pods."""

    def __init__(
        self,
        service: Service,
        reader: PromptReader,
        options: ForwardingOptions,
        *,
        access: Access | None = None,
    ) -> None:
        access = access or Access()
        super().__init__(
            service,
            access=access,
            routes=self._routes(options),
            token_ids=token_ids_of(reader),
        )
        self.proxy = Proxy(
            service,
            reader,
            options,
            limits=self.connection_limits,
            requests=self.metrics.requests,
            access=access,
        )
        self.poller = LoadPoller(
            self.proxy.fleet,
            service.picking.note_load,
            service.journal,
            every_s=options.metrics_s,
        )
        self.metrics.add(ProxyMetrics(self.proxy, service.picking, self.poller))
        self._reader = reader
        self._tells = options.tells
        self._ends_at = options.ends
        self._picking = service.picking
        self._hearing: asyncio.DatagramTransport | None = None
        self._directions = Directions(
            reader,
            options,
            chooser=self.proxy.chooser,
            access=access,
            limits=self.connection_limits,
            requests=self.metrics.requests,
        )

    async def answer_other(
        self, scope: Scope, receive: Receive, send: Send, *, methods: Collection[str]
    ) -> None:
        """Send a request on, unless its path is one of our own."""
        if self._tells and scope["path"] == DIRECTIONS_PATH:
            if scope["method"] == "POST":
                await self._directions(scope, receive, send)
                return
            methods = {"POST"}
        if methods:
            await super().answer_other(scope, receive, send, methods=methods)
        else:
            await self.proxy(scope, receive, send)

    def sweep(self, now: float) -> None:
        """Look after what waits too long, and after the load of pods."""
        self.poller.start()
        self.proxy.sweep(now)

    async def start(self) -> None:
        """Hear of ends of requests, if another data plane tells of them.

        Raises:
            InvalidValueError: The address cannot be listened on.
        """
        if self._ends_at is not None:
            self._hearing = await hear(
                self._ends_at, self._picking, self.proxy.fleet, self.proxy.counts
            )

    async def close(self) -> None:
        """Close the connections to pods."""
        await self.poller.close()
        if self._hearing is not None:
            self._hearing.close()
        await self.proxy.close()
        await self._reader.close()

    def _routes(self, options: ForwardingOptions) -> Sequence[Route]:
        def models(context: Context, call: Call) -> Answer:
            """The models and adapters with at least one registered pod."""
            del context, call
            return Answer(models_answer(self.proxy.fleet))

        told = [route for route in ROUTES if options.tells or route.path in PUBLIC]
        return [
            replace(route, handler=models, at_once=models, answers={200: ModelList}, right=None)
            if route.path == MODELS_PATH
            else route
            for route in told
        ]
