"""Two routers over engines that publish: predictions come true, and both agree."""

import asyncio
from collections.abc import Sequence
from itertools import islice

from kvbraid.integrations.ray import KvbraidRouter
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload
from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest

from tests.ray.fakes import FakeReplica, new_router
from tests.ray.knowledge import has_read, rows

PRESET = PRESETS["qwen3-next-sim"]
PATIENCE_S = 120
LOCAL = "tcp://127.0.0.1:0"


class PublishingReplica(FakeReplica):
    """A simulated hybrid that says where it publishes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.publisher = Publisher(LOCAL, replay_endpoint=LOCAL, bind=True)
        self.engine = SimulatedEngine(PRESET, self.publisher)
        self.last_seq = -1
        self.replica_metadata = {
            "kvbraid": {
                "endpoint": self.publisher.endpoint,
                "replay_endpoint": self.publisher.replay_endpoint,
                "topology": topology_body(PRESET.topology),
            }
        }


async def settle(routers: Sequence[KvbraidRouter], replicas: Sequence[PublishingReplica]) -> None:
    """Wait until each router has applied what was published last."""
    last_seqs = {replica.replica_id.unique_id: replica.last_seq for replica in replicas}
    while not all(has_read(router, last_seqs) for router in routers):
        await asyncio.sleep(0.01)


async def play(
    routers: Sequence[KvbraidRouter],
    replicas: Sequence[PublishingReplica],
    works: Sequence[WorkRequest],
) -> dict[str, int]:
    """Send prompts one at a time; return how many tokens each replica has reused."""
    reused = {replica.replica_id.unique_id: 0 for replica in replicas}
    for number, work in enumerate(works):
        await settle(routers, replicas)
        one, other = (rows(router, work.prompt) for router in routers)
        assert one == other
        router, call_id = routers[number % 2], f"call{number}"
        metadata = RequestMetadata(request_id=call_id, internal_request_id=call_id)
        call = PendingRequest(args=[{"prompt": list(work.prompt)}], kwargs={}, metadata=metadata)
        chosen = await router._choose_replica_for_request(call)
        answer = chosen.engine.serve(EngineRequest(list(work.prompt), list(work.outputs)))
        told = call.kwargs["predicted"]
        assert told["replica"] == chosen.replica_id.unique_id
        assert told["lower"] == told["upper"] == answer.hit
        router.on_request_completed(chosen.replica_id, call_id)
        chosen.last_seq = answer.last_seq
        reused[chosen.replica_id.unique_id] += answer.hit
    return reused


def test_predictions_come_true_also_after_replicas_were_added_and_killed() -> None:
    async def test() -> None:
        works = list(islice(shared_prefix_workload([PRESET.model], seed=1), 90))
        replicas = [PublishingReplica(name) for name in "abc"]
        routers = [
            new_router(replicas, model=PRESET.model, prediction="predicted") for _ in range(2)
        ]
        reused = await play(routers, replicas, works[:40])
        assert sum(reused.values()) > 0  # Chance spreads equals, so one may have reused nothing.

        replicas.append(PublishingReplica("d"))
        for router in routers:
            router.update_replicas(replicas)
        await play(routers, replicas, works[40:60])

        dead = replicas.pop(0)
        dead.publisher.close()
        for router in routers:
            router.on_replica_actor_died(dead.replica_id)
            router.update_replicas(replicas)
        await play(routers, replicas, works[60:75])

        late = new_router(replicas, model=PRESET.model, prediction="predicted")
        await play([routers[1], late], replicas, works[75:])  # An ingress that was replaced.
        for router in [*routers, late]:
            assert router._chooser.router.num_booked() == 0
            router._chooser.check_integrity()
        for replica in replicas:
            replica.publisher.close()

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))
