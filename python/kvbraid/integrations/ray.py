"""`KvbraidRouter`, the request router that Ray Serve makes in each process that holds a handle.

Ray is imported here alone; what it asks and tells goes to a `ReplicaChooser`. Written for Ray
2.60, whose interface is public and alpha. Two of its habits shape this: calls within one request
share an id, and a replica that was chosen for one call may be given to another. The one method
that is not public, `_get_pending_request_matching_metadata`, mends both; without it, Ray goes by
the order of calls.
"""

# ruff: noqa: E402 - the extra is checked first.
from kvbraid.extras import require

require("ray", __name__)

from typing import Any, Final
from weakref import WeakValueDictionary

from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)
from ray.util.metrics import Gauge

from kvbraid.ids import PodId
from kvbraid.integrations.replicas.choosing import HandleCall, ReplicaChooser
from kvbraid.integrations.replicas.metadata import ReplicaFacts, without_events
from kvbraid.integrations.replicas.options import DeploymentOptions, read_options
from kvbraid.policy import Decision

_ROUTER: Final = "kvbraid.integrations.ray:KvbraidRouter"
_CALL: Final = "kvbraid_call"
"""The attribute of a pending request: it lasts as long as the request, and is found again."""

_SHOW_S: Final = 1.0


def router_config(*, stats_period_s: float = 2.0, **kwargs: Any) -> RequestRouterConfig:  # noqa: ANN401
    """Return the `request_router_config` of a deployment, whose arguments are checked here.

    Ray would check them in every process that has a handle, where nobody hears of an error.
    `stats_period_s` is how often replicas are asked for their load.

    Raises:
        InvalidValueError: One line with the key, the value and what was expected.
    """
    without_events(read_options(kwargs, deployment="deployment"))
    return RequestRouterConfig(
        request_router_class=_ROUTER,
        request_router_kwargs=kwargs,
        request_routing_stats_period_s=stats_period_s,
    )


class KvbraidRouter(FIFOMixin, RequestRouter):  # type: ignore[misc] # Untyped without Ray.
    """Sends each call to the replica where it costs least, by what replicas publish."""

    def initialize_state(self, **kwargs: object) -> None:
        """Take the arguments of `request_router_kwargs`.

        Raises:
            InvalidValueError: One line with the key, the value and what was expected.
        """
        self._options: DeploymentOptions = read_options(
            kwargs, deployment=self._deployment_id.name
        )
        self._chooser: ReplicaChooser[RunningReplica] = ReplicaChooser.started(self._options)
        self._pending: WeakValueDictionary[int, PendingRequest] = WeakValueDictionary()
        self._shown = 0.0
        self._gauge = Gauge(
            "kvbraid_router",
            description="What kvbraid's router in this process has counted, by its name.",
            tag_keys=("application", "deployment", "what"),
        )
        self._gauge.set_default_tags(
            {"application": self._deployment_id.app_name, "deployment": self._deployment_id.name}
        )

    # ---- who there is ----------------------------------------------------------------------

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Follow the events of those that are new, and forget those that are gone."""
        super().update_replicas(replicas)
        self._chooser.follow(
            ReplicaFacts(_pod(each.replica_id), each.replica_metadata, each.routing_stats)
            for each in replicas
        )

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Release what was on its way to it."""
        super().on_replica_actor_died(replica_id)
        self._chooser.died(_pod(replica_id))

    # ---- a call ----------------------------------------------------------------------------

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica that the call is booked at, then the next best, then all."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # Otherwise Ray asks without rest.
        call = self._call(pending_request)
        if call.name:  # It was full: only those are left that are not known to be.
            candidate_replicas = (
                self.select_available_replicas(candidate_replicas) or candidate_replicas
            )
        ranks, decision = await self._chooser.rank(call, candidate_replicas)
        if decision is not None and self._options.prediction is not None:
            pending_request.kwargs[self._options.prediction] = _told(decision)
        self._show()
        return ranks

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """Note where the call went, which may be another replica than the chosen one."""
        del result
        self._chooser.sent(self._call(pending_request), _pod(replica_id))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Release the call."""
        self._chooser.completed(internal_request_id, _pod(replica_id))

    def _get_pending_request_matching_metadata(
        self, request_metadata: object = None
    ) -> PendingRequest | None:
        """Return the call for which a replica was chosen, rather than the one that came first."""
        pending = self._pending.get(id(request_metadata))
        if pending is None or pending.future.done():
            return None
        self._chooser.sent(self._call(pending))
        return pending

    def _call(self, pending: PendingRequest) -> HandleCall:
        call = getattr(pending, _CALL, None)
        if call is None:
            metadata = pending.metadata
            call = HandleCall(
                call_id=metadata.internal_request_id,
                args=pending.args,
                kwargs=pending.kwargs,
                session=metadata.session_id or None,
                adapter=metadata.multiplexed_model_id or None,
            )
            setattr(pending, _CALL, call)
            self._pending[id(metadata)] = pending
        return call

    def _show(self) -> None:
        """Let Ray export what has been counted, from time to time."""
        now = self._get_curr_time_s()
        if now - self._shown < _SHOW_S:
            return
        self._shown = now
        for what, num in self._chooser.counts().items():
            self._gauge.set(num, tags={"what": what})


def _pod(replica_id: ReplicaID) -> PodId:
    return PodId(replica_id.unique_id)


def _told(decision: Decision) -> dict[str, object]:
    pod, dp_rank = decision.rank
    return {
        "replica": pod,
        "dp_rank": dp_rank,
        "lower": decision.lower,
        "upper": decision.upper,
        "expected": decision.resumable,
    }
