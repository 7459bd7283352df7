"""What runs in a cluster: the example's engines and ingress, which also tell what they know.

Ray's workers import this module.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvbraid.integrations.ray import KvbraidRouter, router_config
from ray import serve
from ray.exceptions import RayActorError

from examples.ray_serve import PRESET, Engine, Ingress
from tests.ray.knowledge import Row, has_read, rows


class EngineFacts(NamedTuple):
    replica: str
    process: int
    last_seq: int
    num_running: int


class IngressFacts(NamedTuple):
    """`rows` are there if the router has read all that engines have published."""

    process: int
    rows: list[Row] | None
    counts: dict[str, int]
    num_again: int
    """How many calls were made again because their engine had died."""


def name_of_this_replica() -> str:
    return str(serve.get_replica_context().replica_id.unique_id)


async def router_of(handle: Any) -> KvbraidRouter:  # noqa: ANN401
    """Return what Ray has made of our class for a handle of this process."""
    if not handle.is_initialized:
        handle._init()
    router: KvbraidRouter | None = None
    while router is None:
        router = handle._router._asyncio_router.request_router
        await asyncio.sleep(0.01)
    return router


class TellingEngine(Engine):
    """Answers after `takes_s`, and says which replica it is."""

    num_running = 0

    async def __call__(self, body: dict[str, Any], predicted: object = None) -> dict[str, Any]:
        self.num_running += 1
        await asyncio.sleep(body["takes_s"])
        answer = await super().__call__(body, predicted)
        self.num_running -= 1
        return {**answer, "replica": name_of_this_replica()}

    async def facts(self) -> EngineFacts:
        last_seq = self.engine._last_seq
        return EngineFacts(name_of_this_replica(), os.getpid(), last_seq, self.num_running)


class OddEngine(TellingEngine):
    """One of three says nothing of where it publishes, and one says what cannot be."""

    def record_replica_metadata(self) -> dict[str, Any]:
        rank = serve.get_replica_context().rank.rank
        return ({}, {"kvbraid": {"endpoint": 7}}, super().record_replica_metadata())[rank % 3]


class TellingIngress(Ingress):
    def __init__(self, engines: Any) -> None:  # noqa: ANN401 - a DeploymentHandle
        super().__init__(engines)
        self.num_again = 0

    async def __call__(self, body: dict[str, Any]) -> object:
        while True:
            try:
                return await self.engines.remote(body)
            except RayActorError:
                self.num_again += 1

    async def fan_out(self, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        return list(await asyncio.gather(*map(self, bodies)))

    async def facts(self, prompt: Sequence[int], last_seqs: dict[str, int]) -> IngressFacts:
        router = await router_of(self.engines)
        known = rows(router, prompt) if has_read(router, last_seqs) else None
        return IngressFacts(os.getpid(), known, router._chooser.counts(), self.num_again)


def application(engine: type[TellingEngine], num_ingresses: int) -> Any:  # noqa: ANN401
    """Return three engines, which are soon full, and replicas of an ingress that call them."""
    often = {"health_check_period_s": 0.5, "graceful_shutdown_timeout_s": 5.0}
    engines = serve.deployment(
        engine,
        name="engines",
        num_replicas=3,
        max_ongoing_requests=5,
        request_router_config=router_config(model=PRESET.model, prediction="predicted"),
        **often,
    )
    ingress = serve.deployment(
        TellingIngress,
        name="ingress",
        num_replicas=num_ingresses,
        max_ongoing_requests=100,
        **often,
    )
    return ingress.bind(engines.bind())
