"""Ray Serve in a cluster: what is predicted comes true in each process, and no call is lost."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from signal import SIGKILL

import pytest
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload

from examples.ray_serve import PRESET
from tests.ray.cluster import Application, started, wait_for
from tests.ray.deployments import OddEngine, TellingEngine

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with started():
        yield


@pytest.fixture(scope="module")
def app(cluster: None) -> Iterator[Application]:
    del cluster
    app = Application("app", TellingEngine, num_ingresses=2)
    yield app
    app.close()


def traffic(seed: int) -> Iterator[WorkRequest]:
    return shared_prefix_workload([PRESET.model], seed=seed)


def play(app: Application, works: Iterable[WorkRequest]) -> int:
    """Send prompts one at a time, and compare; return how many tokens were reused."""
    reused = 0
    for work in works:
        one, other = app.ingresses(work.prompt, have_read=True)
        assert one.rows == other.rows
        [answer] = app.call([work])
        told = answer["predicted"]
        assert told["replica"] == answer["replica"]
        assert told["lower"] == told["upper"] == answer["reused"]
        reused += answer["reused"]
    return reused


def kill_a_busy_engine(app: Application) -> None:
    busy = wait_for(lambda: next((e for e in app.engines() if e.num_running), None), "call")
    os.kill(busy.process, SIGKILL)


def kill_a_busy_ingress(app: Application) -> None:
    busy = wait_for(
        lambda: next((i for i in app.ingresses() if i.counts["in_flight"]), None), "call"
    )
    os.kill(busy.process, SIGKILL)


def test_predictions_come_true_while_replicas_come_and_go(app: Application) -> None:
    works = traffic(seed=1)
    assert play(app, islice(works, 25)) > 0
    app.scale_engines(4)
    play(app, islice(works, 10))
    os.kill(app.engines()[0].process, SIGKILL)  # Ray starts another one.
    play(app, islice(works, 10))
    os.kill(app.ingresses()[0].process, SIGKILL)
    play(app, islice(works, 10))
    app.scale_engines(3)
    play(app, islice(works, 10))


def test_no_call_is_lost_when_replicas_are_killed_under_load(app: Application) -> None:
    works, before = traffic(seed=2), app.num_again
    answers = app.call(islice(works, 30), takes_s=2.0, meanwhile=lambda: kill_a_busy_engine(app))
    assert len(answers) == 30
    assert sum(ingress.num_again for ingress in app.ingresses()) > 0
    assert app.num_again == before  # Ray raises to the ingress, which calls again.

    answers = app.call(islice(works, 30), takes_s=2.0, meanwhile=lambda: kill_a_busy_ingress(app))
    assert len(answers) == 30
    assert app.num_again > before  # Here to its client.
    play(app, islice(works, 5))
    assert [ingress.counts["in_flight"] for ingress in app.ingresses()] == [0, 0]


def test_calls_within_one_request_go_where_each_is_predicted(app: Application) -> None:
    app.ingresses(have_read=True)
    answers = app.fan_out(islice(traffic(seed=3), 6))
    assert [each["replica"] for each in answers] == [
        each["predicted"]["replica"] for each in answers
    ]


def test_replicas_that_say_nothing_of_use_still_answer(cluster: None) -> None:
    del cluster
    app = Application("odd", OddEngine, num_ingresses=1)
    answers = app.call(islice(traffic(seed=4), 24), takes_s=0.1)
    assert len({each["replica"] for each in answers}) == 3
    [ingress] = app.ingresses()
    for kind in ("events", "missing", "malformed"):
        assert ingress.counts[f"replicas_{kind}"] == 1
    app.close()
