"""The application in its cluster, as a client of it has it."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import ray
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from tests.ray.engines import PRESET, TRIES, application

PATIENCE_S: Final = 120.0


def body(work: WorkRequest) -> dict[str, Any]:
    return {"prompt": list(work.prompt), "outputs": list(work.outputs)}


def workload(num: int, seed: int) -> list[dict[str, Any]]:
    return [body(work) for work in islice(shared_prefix_workload([PRESET.model], seed=seed), num)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to be"
        time.sleep(0.02)


class RayFleet:
    """Engines and ingresses, which come and die."""

    def __init__(self) -> None:
        self.handle: DeploymentHandle = serve.run(application(replicas=3))

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return an answer; an ingress that dies is asked no more, and another one is."""
        for tried in range(TRIES):
            try:
                answer: dict[str, Any] = self.handle.remote(asked).result(timeout_s=PATIENCE_S)
            except RayActorError:
                time.sleep(0.05 * tried)
            else:
                return answer
        raise AssertionError(f"no ingress answered in {TRIES} tries")

    def states(self, prompt: list[int] | None = None) -> list[dict[str, Any]]:
        """Return what each ingress knows."""
        found = self.handle.broadcast("state", prompt or [1]).results(timeout_s=PATIENCE_S)
        return sorted(found, key=lambda state: str(state["ingress"]))

    def run(self, replicas: int, work_s: float = 0.0) -> None:
        """Have so many engines, all of which both ingresses follow."""
        self.handle = serve.run(application(replicas=replicas, work_s=work_s))
        until(lambda: self.is_followed(replicas))

    def is_followed(self, replicas: int) -> bool:
        states = self.states()
        return len(states) == 2 and all(
            state["counts"]["replicas_events"] == len(state["feeds"]) == replicas
            for state in states
        )

    def settle(self, last: dict[str, int]) -> None:
        """Wait until both ingresses have applied what was published last."""
        until(
            lambda: all(
                (state["feeds"].get(pod) if state["feeds"].get(pod) is not None else -1) >= seq
                for state in self.states()
                for pod, seq in last.items()
            )
        )

    def kill(self, deployment: str) -> str:
        """Kill a replica, and return the name of its actor."""
        actors = ray.util.list_named_actors(all_namespaces=True)
        found = next(a for a in actors if f"#{deployment}#" in a["name"])
        ray.kill(ray.get_actor(**found))
        return str(found["name"])
