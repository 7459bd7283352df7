"""Replicas that Ray's routing loop can ask, without a cluster."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from kvbraid.integrations.ray import KvbraidRouter
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID

DEPLOYMENT: Final = DeploymentID("engines", "app")


class FakeReplica:
    """A replica with a queue; asked how long that is, it takes `slow_s` to answer."""

    def __init__(self, name: str, *, most: int = 100) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.replica_metadata: dict[str, Any] = {}
        self.routing_stats: dict[str, Any] = {}
        self.max_ongoing_requests = most
        self.queue = 0
        self.slow_s = 0.0
        self.num_probes = 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        del deadline_s
        self.num_probes += 1
        await asyncio.sleep(self.slow_s)
        return self.queue


def new_router(replicas: Iterable[FakeReplica], **kwargs: object) -> KvbraidRouter:
    """Return a router as Ray makes it; to be called on an event loop."""
    router = KvbraidRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
        initial_backoff_s=0.001,
        max_backoff_s=0.05,
    )
    # A busy machine stops a process for longer than 0.1 s, and Ray would take another replica.
    router.queue_len_response_deadline_s = 10.0
    router.initialize_state(**kwargs)
    router.update_replicas(list(replicas))
    return router


def pending(call_id: str, first: int = 0, tokens: int = 64) -> PendingRequest:
    """Return a call of a handle with a prompt of its own."""
    metadata = RequestMetadata(request_id=call_id, internal_request_id=call_id)
    body = {"prompt": list(range(first, first + tokens))}
    return PendingRequest(args=[body], kwargs={}, metadata=metadata)


def booked_at(router: KvbraidRouter, call: PendingRequest) -> str | None:
    """Return the name of the replica where a call is booked."""
    booking = router._chooser.router.booking(router._call(call).name)
    return None if booking is None else booking.rank[0]
