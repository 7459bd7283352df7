"""A cluster on this machine: replicas come and die under load, and predictions come true."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import pytest
import ray
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from tests.ray.engines import PRESET, TRIES, application

PATIENCE_S: Final = 120.0
pytestmark = pytest.mark.timeout(900)


def body(work: WorkRequest) -> dict[str, Any]:
    return {"prompt": list(work.prompt), "outputs": list(work.outputs)}


def workload(num: int, seed: int) -> list[dict[str, Any]]:
    return [body(work) for work in islice(shared_prefix_workload([PRESET.model], seed=seed), num)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to be"
        time.sleep(0.02)


class Fleet:
    """The application in its cluster, as a client has it."""

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


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield Fleet()
        serve.shutdown()
    finally:
        ray.shutdown()


def compare(fleet: Fleet, num: int, seed: int) -> list[dict[str, Any]]:
    """Send prompts one at a time; each is reused as predicted, and both ingresses agree."""
    answers, last = [], dict[str, int]()
    for asked in workload(num, seed):
        one, other = fleet.states(asked["prompt"])
        assert one["rows"] == other["rows"]
        answer = fleet.ask(asked)
        assert answer["predicted"]["replica"] == answer["replica"]
        assert answer["predicted"]["lower"] == answer["reused"] == answer["predicted"]["upper"]
        last[answer["replica"]] = answer["last_seq"]
        fleet.settle(last)
        answers.append(answer)
    return answers


def test_predictions_come_true_and_both_ingresses_agree(fleet: Fleet) -> None:
    fleet.run(3)
    answers = compare(fleet, 60, seed=1)
    assert sum(answer["reused"] for answer in answers) > 10_000
    assert len({answer["replica"] for answer in answers}) == 3
    assert len({answer["ingress"] for answer in answers}) == 2
    until(lambda: all(state["booked"] == 0 for state in fleet.states()))


def test_a_replica_is_added_and_one_killed_under_load_and_no_request_is_lost(fleet: Fleet) -> None:
    fleet.run(3)
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(fleet.ask, each) for each in workload(120, seed=2)]
        until(lambda: sum(each.done() for each in asked) > 20)
        fleet.run(4)
        fleet.kill("engines")
        answers = [each.result() for each in asked]
    assert len(answers) == 120
    until(lambda: fleet.is_followed(4))
    until(lambda: all(state["booked"] == 0 for state in fleet.states()))
    compare(fleet, 10, seed=3)


def test_an_ingress_is_killed_and_the_next_one_knows_the_same(fleet: Fleet) -> None:
    fleet.run(3)
    before = {state["ingress"] for state in fleet.states()}
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(fleet.ask, each) for each in workload(60, seed=4)]
        until(lambda: sum(each.done() for each in asked) > 10)
        fleet.kill("ingress")
        answers = [each.result() for each in asked]
    assert len(answers) == 60
    until(lambda: {state["ingress"] for state in fleet.states()} - before != set())
    until(lambda: fleet.is_followed(3))
    compare(fleet, 10, seed=4)


def test_the_calls_of_one_request_are_all_answered(fleet: Fleet) -> None:
    fleet.run(3)
    bodies = workload(8, seed=5)
    answers = fleet.handle.fan_out.remote(bodies).result(timeout_s=PATIENCE_S)
    assert all(answer["predicted"]["replica"] == answer["replica"] for answer in answers)
    until(lambda: all(state["booked"] == 0 for state in fleet.states()))


def test_what_is_only_picked_does_not_stay_booked(fleet: Fleet) -> None:
    fleet.run(3)
    for asked in workload(30, seed=6):
        assert fleet.handle.pick.remote(asked).result(timeout_s=PATIENCE_S)

    def is_released() -> bool:
        fleet.handle.pick.remote(workload(1, seed=7)[0]).result(timeout_s=PATIENCE_S)
        return all(state["booked"] < 5 for state in fleet.states())

    until(is_released)
