"""A cluster of Ray on this machine, and an application in it as a client sees it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Final, TypeVar

import ray
from kvbraid.sim.fleet.workload import WorkRequest
from ray import serve
from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentID
from ray.serve.context import _get_global_client

from tests.docs.markdown import ROOT
from tests.ray.deployments import EngineFacts, IngressFacts, TellingEngine, application

PATIENCE_S: Final = 120.0
SETTINGS: Final = {
    "PYTHONPATH": str(ROOT),  # Workers import tests.ray.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    # On a busy machine a probe takes longer than 0.1 s, and Ray would take another replica.
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "10",
    "RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "10",
}
_T = TypeVar("_T")


@contextmanager
def started(*, proxy_location: str = "Disabled") -> Iterator[None]:
    """Run a cluster of this machine alone."""
    os.environ.update(SETTINGS)
    ray.init(
        num_cpus=16,  # What replicas count as: none of them computes.
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
    )
    try:
        serve.start(proxy_location=proxy_location)
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def wait_for(found: Callable[[], _T | None], what: str) -> _T:
    """Ask until there is an answer; replicas that are just dying do not count."""
    end = monotonic() + PATIENCE_S
    while monotonic() < end:
        try:
            answer = found()
        except RayActorError:
            answer = None
        if answer is not None:
            return answer
        sleep(0.02)
    raise AssertionError(f"no {what} within {PATIENCE_S} s")


class Application:
    """Three engines and their ingresses; a call is made again where Ray raises `RayActorError`."""

    def __init__(self, name: str, engine: type[TellingEngine], *, num_ingresses: int) -> None:
        self.num_engines, self.num_ingresses, self.num_again = 3, num_ingresses, 0
        self._name = name
        self._ingress = serve.run(
            application(engine, num_ingresses),
            name=name,
            route_prefix=None,
            external_scaler_enabled=True,
        )
        self._engines = serve.get_deployment_handle("engines", name)

    def close(self) -> None:
        serve.delete(self._name)

    def scale_engines(self, num_engines: int) -> None:
        controller = _get_global_client()._controller
        engines = DeploymentID("engines", self._name)
        ray.get(controller.update_deployment_replicas.remote(engines, num_engines))
        self.num_engines = num_engines

    def engines(self) -> list[EngineFacts]:
        """Return what each engine says of itself, once there are as many as there have to be."""

        def all_of_them() -> list[EngineFacts] | None:
            facts: list[EngineFacts] = self._engines.broadcast("facts").results()
            return facts if len(facts) == self.num_engines else None

        return wait_for(all_of_them, f"{self.num_engines} engines")

    def ingresses(
        self, prompt: Sequence[int] = (1,), *, have_read: bool = False
    ) -> list[IngressFacts]:
        """Return what each ingress knows, also once they have read all that was published."""

        def all_of_them() -> list[IngressFacts] | None:
            last_seqs = {engine.replica: engine.last_seq for engine in self.engines()}
            facts: list[IngressFacts] = self._ingress.broadcast(
                "facts", list(prompt), last_seqs
            ).results()
            if len(facts) < self.num_ingresses or (have_read and None in [x.rows for x in facts]):
                return None
            return facts

        return wait_for(all_of_them, f"{self.num_ingresses} ingresses")

    def call(
        self,
        works: Iterable[WorkRequest],
        *,
        takes_s: float = 0.0,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> list[dict[str, Any]]:
        """Send requests at once, do something meanwhile, and return the answers."""
        bodies = [body_of(work, takes_s) for work in works]
        sent = [(body, self._ingress.remote(body)) for body in bodies]
        meanwhile()
        return [self._result(body, response) for body, response in sent]

    def fan_out(self, works: Iterable[WorkRequest]) -> list[dict[str, Any]]:
        """Send one request that makes a call for each of these; return its answers."""
        bodies = [body_of(work, 0.0) for work in works]
        return list(self._ingress.fan_out.remote(bodies).result(timeout_s=PATIENCE_S))

    def _result(self, body: dict[str, Any], response: Any) -> dict[str, Any]:  # noqa: ANN401
        while True:
            try:
                return dict(response.result(timeout_s=PATIENCE_S))
            except RayActorError:  # The ingress has died with it.
                self.num_again += 1
                response = self._ingress.remote(body)


def body_of(work: WorkRequest, takes_s: float) -> dict[str, Any]:
    return {"prompt": list(work.prompt), "outputs": list(work.outputs), "takes_s": takes_s}
