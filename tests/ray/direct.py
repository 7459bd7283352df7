"""Direct streaming, as Ray Serve LLM builds it: HAProxy asks a deployment, and sends to an engine.

A process that prints its answers as lines of JSON: Ray reads its settings when it is imported.
Ray's way to attach a deployment that HAProxy asks is private, so users of Ray Serve have none.
"""

import json
import sys
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final
from urllib.request import Request, urlopen

from kvbraid.integrations.ray import router_config
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload
from ray import serve

from examples.ray_serve import PRESET
from tests.ray.cluster import body_of, started, wait_for
from tests.ray.deployments import EngineFacts, TellingEngine, router_of
from tests.ray.knowledge import has_read, rows

NUM_REQUESTS: Final = 60
_TOLD: Final = "x-serve-router-told"


class DirectEngine(TellingEngine):
    """Gets requests by HTTP, with what the router has told of them."""

    async def __call__(self, body: Any, predicted: object = None) -> dict[str, Any]:  # noqa: ANN401
        expected, booked = map(int, body.headers[_TOLD].split())
        answer = await super().__call__(await body.json(), predicted)
        return {"reused": answer["reused"], "expected": expected, "booked": booked}


class Route:
    """Answers `/internal/route` as Ray Serve LLM does, if it has read all that was published."""

    def __init__(self, engines: Any) -> None:  # noqa: ANN401 - a DeploymentHandle
        self.engines = engines

    async def __call__(self, request: Any) -> dict[str, Any]:  # noqa: ANN401 - Starlette's
        body = SimpleNamespace(**await request.json())
        router = await router_of(self.engines)
        if not has_read(router, body.last_seqs):
            raise LookupError("not yet")  # HAProxy answers with 503.
        expected = {pod: tokens for (pod, _), _, _, tokens in rows(router, body.prompt)}
        async with self.engines.choose_replica(body, _reserve=False) as selection:
            host, port = selection._replica.backend_http_endpoint
            name = selection._replica.replica_id.to_full_id_str()
        told = f"{expected[selection.replica_id]} {router._chooser.router.num_booked()}"
        headers = {_TOLD: told}
        return {"host": host, "port": port, "replica_id": name, "request_headers": headers}


def ask(engines: Any, work: WorkRequest) -> dict[str, Any] | None:  # noqa: ANN401
    """Return the answer to a request; none while HAProxy or the router does not know enough."""
    facts: list[EngineFacts] = engines.broadcast("facts").results()
    last_seqs = {engine.replica: engine.last_seq for engine in facts}
    body = json.dumps({**body_of(work, 0.0), "last_seqs": last_seqs})
    try:
        with urlopen(Request("http://127.0.0.1:8000/", body.encode()), timeout=60) as response:
            return dict(json.load(response))
    except OSError:
        return None


if __name__ == "__main__":
    with started(proxy_location="HeadOnly"):
        routing = router_config(model=PRESET.model, router={"grace_s": 0.2})
        engines = serve.deployment(
            DirectEngine, name="engines", num_replicas=3, request_router_config=routing
        ).bind()
        route = serve.deployment(Route, name="route").bind(engines)
        handle = serve.run(engines._with_ingress_request_router(route))
        for work in islice(shared_prefix_workload([PRESET.model], seed=1), NUM_REQUESTS):
            answer = wait_for(partial(ask, handle, work), "answer")
            sys.stdout.write(json.dumps(answer) + "\n")
