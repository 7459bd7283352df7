"""Ray Serve with kvbraid: replicas say where they publish, and the router knows what they hold."""

from random import SystemRandom
from typing import Any

import ray
from kvbraid.integrations.ray import router_config
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from ray import serve

PRESET = PRESETS["gpt-oss-sim"]


@serve.deployment(
    name="engines",
    num_replicas=3,
    max_ongoing_requests=8,
    request_router_config=router_config(model=PRESET.model, prediction="predicted"),
    ray_actor_options={"num_cpus": 0.1},
)
class Engine:
    """One replica; a real one starts its engine here, and passes on where that publishes."""

    def __init__(self) -> None:
        address = f"tcp://{ray.util.get_node_ip_address()}:0"
        self.publisher = Publisher(address, replay_endpoint=address, bind=True)
        self.engine = SimulatedEngine(PRESET, self.publisher)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Say where events come from, and what the cache consists of."""
        return {
            "kvbraid": {
                "endpoint": self.publisher.endpoint,
                "replay_endpoint": self.publisher.replay_endpoint,
                "topology": topology_body(PRESET.topology),
            }
        }

    def __call__(self, body: dict[str, Any], predicted: dict[str, Any]) -> tuple[int, int]:
        """Serve a prompt; return what was predicted, and what was reused."""
        answer = self.engine.serve(EngineRequest(prompt=body["prompt"]))
        return predicted["lower"], answer.hit


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    chance = SystemRandom()
    handle = serve.run(Engine.bind())  # type: ignore[attr-defined] # Untyped without Ray.
    prompts = [[chance.randrange(50_000) for _ in range(600)] for _ in range(4)]
    for turn in range(3):
        for number, prompt in enumerate(prompts):
            predicted, reused = handle.remote({"prompt": prompt}).result()
            told = f"{predicted} of {len(prompt)} tokens predicted, {reused} reused"
            print(f"prompt {number}, turn {turn}: {told}")
            prompt += [chance.randrange(50_000) for _ in range(200)]
    serve.shutdown()
    ray.shutdown()
