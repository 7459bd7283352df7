"""A cluster on this machine: replicas come and die under load, and predictions come true."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from ray import serve

from tests.ray.fleet import PATIENCE_S, RayFleet, until, workload

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def fleet() -> Iterator[RayFleet]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield RayFleet()
    finally:
        serve.shutdown()
        ray.shutdown()


def compare(fleet: RayFleet, num: int, seed: int) -> list[dict[str, Any]]:
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


def test_predictions_come_true_and_both_ingresses_agree(fleet: RayFleet) -> None:
    fleet.run(3)
    answers = compare(fleet, 60, seed=1)
    assert sum(answer["reused"] for answer in answers) > 10_000
    assert len({answer["replica"] for answer in answers}) == 3
    assert len({answer["ingress"] for answer in answers}) == 2
    until(lambda: all(state["booked"] == 0 for state in fleet.states()))


def test_a_replica_is_added_and_one_killed_under_load_and_no_request_is_lost(
    fleet: RayFleet,
) -> None:
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


def test_an_ingress_is_killed_and_the_next_one_knows_the_same(fleet: RayFleet) -> None:
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


def test_the_calls_of_one_request_are_all_answered(fleet: RayFleet) -> None:
    fleet.run(3)
    bodies = workload(8, seed=5)
    answers = fleet.handle.fan_out.remote(bodies).result(timeout_s=PATIENCE_S)
    assert all(answer["predicted"]["replica"] == answer["replica"] for answer in answers)
    until(lambda: all(state["booked"] == 0 for state in fleet.states()))


def test_what_is_only_picked_does_not_stay_booked(fleet: RayFleet) -> None:
    fleet.run(3)
    for asked in workload(30, seed=6):
        assert fleet.handle.pick.remote(asked).result(timeout_s=PATIENCE_S)

    def is_released() -> bool:
        fleet.handle.pick.remote(workload(1, seed=7)[0]).result(timeout_s=PATIENCE_S)
        return all(state["booked"] < 5 for state in fleet.states())

    until(is_released)
