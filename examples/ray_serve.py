"""Ray Serve asks kvbraid: simulated engines publish events, and each call goes where it fits."""

from itertools import islice
from typing import Any

import ray
from kvbraid.integrations.ray import router_config
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from kvbraid.sim.fleet.workload import shared_prefix_workload
from ray import serve
from ray.exceptions import RayActorError

PRESET = PRESETS["qwen3-next-sim"]


class Engine:
    """A replica: the cache of a hybrid model, without the model."""

    def __init__(self) -> None:
        here = f"tcp://{ray.util.get_node_ip_address()}:0"
        self.publisher = Publisher(here, replay_endpoint=here, bind=True)
        self.engine = SimulatedEngine(PRESET, self.publisher)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Say where this replica is followed; Ray asks once."""
        ends = {end: getattr(self.publisher, end) for end in ("endpoint", "replay_endpoint")}
        return {"kvbraid": {**ends, "topology": topology_body(PRESET.topology)}}

    async def __call__(self, body: dict[str, Any], predicted: object = None) -> dict[str, Any]:
        """Answer with the tokens that were reused, and with what the router has predicted."""
        answer = self.engine.serve(EngineRequest(body["prompt"], body["outputs"]))
        return {"reused": answer.hit, "predicted": predicted}


class Ingress:
    """What users call. Each replica of it has a router, which follows all engines."""

    def __init__(self, engines: Any) -> None:  # noqa: ANN401 - a DeploymentHandle
        self.engines = engines

    async def __call__(self, body: dict[str, Any]) -> object:
        """Call an engine, and again if it dies meanwhile."""
        try:
            return await self.engines.remote(body)
        except RayActorError:
            return await self(body)


if __name__ == "__main__":
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")  # Nobody calls by HTTP here.
    routing = router_config(model=PRESET.model, prediction="predicted")
    engines = serve.deployment(Engine, num_replicas=3, request_router_config=routing)
    handle = serve.run(serve.deployment(Ingress, num_replicas=2).bind(engines.bind()))
    for work in islice(shared_prefix_workload([PRESET.model], seed=1), 50):
        body = {"prompt": list(work.prompt), "outputs": list(work.outputs)}
        print(len(work.prompt), "tokens:", handle.remote(body).result())
    serve.shutdown()
