"""What runs in the cluster: simulated hybrids, and two ingress replicas that call them."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import ray
from kvbraid.fleet import Request
from kvbraid.integrations.ray import router_config
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

PRESET: Final = PRESETS["qwen3-next-sim"]
TRIES: Final = 20
_SMALL: Final = {"num_cpus": 0.05}


@serve.deployment(name="engines", max_ongoing_requests=4, ray_actor_options=_SMALL)
class Engine:
    """One replica with a cache; a prompt takes it `work_s`."""

    def __init__(self, work_s: float) -> None:
        address = f"tcp://{ray.util.get_node_ip_address()}:0"
        self._publisher = Publisher(address, replay_endpoint=address, bind=True)
        self._engine = SimulatedEngine(PRESET, self._publisher)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._work_s = work_s
        self._turn = asyncio.Lock()
        self._num_here = 0

    def record_replica_metadata(self) -> dict[str, Any]:
        return {
            "kvbraid": {
                "endpoint": self._publisher.endpoint,
                "replay_endpoint": self._publisher.replay_endpoint,
                "topology": topology_body(PRESET.topology),
            }
        }

    def record_routing_stats(self) -> dict[str, Any]:
        return {"kvbraid": {"running": self._num_here}}

    async def __call__(
        self, body: dict[str, Any], predicted: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self._num_here += 1
        try:
            async with self._turn:
                await asyncio.sleep(self._work_s)
                asked = EngineRequest(prompt=body["prompt"], outputs=body["outputs"])
                answer = self._engine.serve(asked)
        finally:
            self._num_here -= 1
        return {
            "replica": self._name,
            "reused": answer.hit,
            "last_seq": answer.last_seq,
            "predicted": predicted,
        }


@serve.deployment(name="ingress", num_replicas=2, ray_actor_options=_SMALL)
class Ingress:
    """Calls engines; asks again if one dies with a call, as any client of theirs has to."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self._engines = engines
        self._name = serve.get_replica_context().replica_id.unique_id

    async def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        for tried in range(TRIES):
            try:
                answer: dict[str, Any] = await self._engines.remote(body)
            except RayActorError:
                await asyncio.sleep(0.05 * tried)
            else:
                return {**answer, "ingress": self._name}
        raise RuntimeError(f"no engine answered in {TRIES} tries")

    async def fan_out(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make several calls within one request."""
        answers: list[dict[str, Any]] = await asyncio.gather(*map(self._engines.remote, bodies))
        return answers

    async def pick(self, body: dict[str, Any]) -> str:
        """Have a replica named and send nothing, as the peer of direct streaming does."""
        async with self._engines.choose_replica(body, _reserve=False) as selection:
            return str(selection.replica_id)

    async def state(self, prompt: Sequence[int]) -> dict[str, Any]:
        """Return what this process knows: rows of a prompt, progress of feeds, and counts."""
        chooser = self._engines._router._asyncio_router.request_router._chooser
        rows: list[Any] = []
        if chooser.replicas.pods:
            scores = chooser.router._index.score(Request(model=PRESET.model, token_ids=prompt))
            rows = sorted((row.pod, row.lower, row.upper, row.expected) for row in scores.rows)
        feeds = {row.pod: row.last_seq for row in chooser.replicas._feed.status()}
        return {
            "ingress": self._name,
            "rows": rows,
            "feeds": feeds,
            "counts": chooser.counts(),
            "booked": chooser.router.num_booked(),
        }


def application(*, replicas: int, work_s: float = 0.0) -> serve.Application:
    """Return the application with so many engines."""
    engines = Engine.options(  # type: ignore[attr-defined] # Untyped without Ray.
        num_replicas=replicas,
        request_router_config=router_config(
            model=PRESET.model, prediction="predicted", stats_period_s=0.5
        ),
    )
    return Ingress.bind(engines.bind(work_s))  # type: ignore[attr-defined] # As above.
