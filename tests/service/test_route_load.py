"""A gateway that reads the metrics of its pods: what it learns, and what bad pods do to it."""

import asyncio
import logging

import pytest
from kvbraid.gateway.polling import MOST_BYTES
from kvbraid.ids import PodId
from kvbraid.policy import EngineLoad
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.route_pods import Asked, Behaviour, Fleet, fleet, get, greets, in_loop, post
from tests.service.route_pods import until as so

OFTEN = ForwardingOptions(metrics_s=0.1)
A, B = PodId("a"), PodId("b")


def waiting(number: int, rank: int = 0) -> bytes:
    return b'vllm:num_requests_waiting{engine="%d"} %d\n' % (rank, number)


def with_metrics(answers: Behaviour) -> Behaviour:
    async def behaves(asked: Asked) -> None:
        await (answers if asked.line.startswith("GET /metrics ") else greets)(asked)

    return behaves


def says(body: bytes, status: str = "200 OK", more: str = "") -> Behaviour:
    async def answers(asked: Asked) -> None:
        await asked.answer(body, status, more)

    return with_metrics(answers)


@with_metrics
async def never_ends(asked: Asked) -> None:
    await asked.begin("text/plain")
    while not asked.gone.is_set():
        await asked.chunk(b"x" * (MOST_BYTES // 8))


@with_metrics
async def never_answers(asked: Asked) -> None:
    await asked.gone.wait()


@with_metrics
async def stops_in_the_middle(asked: Asked) -> None:
    await asked.begin("text/plain")
    await asked.chunk(waiting(5))
    await asked.gone.wait()


@with_metrics
async def dies(asked: Asked) -> None:
    asked.die()


@with_metrics
async def writes_garbage(asked: Asked) -> None:
    await asked.write(b"nonsense\r\n\r\n")


def loads(them: Fleet) -> dict[tuple[str, int], EngineLoad]:
    return {(pod, rank): load for (pod, rank), load in them.service.picking.engine_loads().items()}


def polls(them: Fleet) -> dict[str, int]:
    return dict(them.gateway.poller.polls)


@in_loop
async def test_a_pod_that_others_keep_busy_gets_fewer_requests() -> None:
    async with fleet(says(waiting(50)), says(waiting(0)), options=OFTEN, polls=True) as them:
        them.gateway.sweep(them.now())
        await so(lambda: len(loads(them)) == 2)
        for _ in range(4):
            assert (await them.ask(post()))[0].status == 200
        assert [a.line for a in them.engines["b"].asked if "completions" in a.line]
        assert not [a.line for a in them.engines["a"].asked if "completions" in a.line]
        _, text = await them.ask(get("/metrics"))
        lines = text.decode().splitlines()
        assert 'kvbraid_gateway_engine_waiting{dp_rank="0",pod="a"} 50.0' in lines
        assert 'kvbraid_gateway_engine_usage{dp_rank="0",pod="b"} 0.0' in lines
        assert any(
            line.startswith('kvbraid_gateway_polls_total{outcome="read"}') for line in lines
        )
        connections = {asked.connection for asked in them.engines["b"].asked}
        assert len(connections) <= 2  # One for polls, one for requests.


@in_loop
async def test_each_rank_has_the_load_that_its_label_names() -> None:
    both = waiting(3, 0) + waiting(4, 1) + waiting(5, 2)
    async with fleet(says(both), options=OFTEN, polls=True, dp_size=2) as them:
        them.gateway.sweep(them.now())
        await so(lambda: bool(loads(them)))
        assert {rank: load.waiting for rank, load in loads(them).items()} == {
            ("a", 0): 3,
            ("a", 1): 4,
        }


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        (says(waiting(5), "404 Not Found"), "refused"),
        (says(waiting(5), "307 Temporary Redirect", "location: /metrics/\r\n"), "refused"),
        (says(b"\x00\xff" * 1000), "no_load"),
        (says(waiting(5).replace(b"5", b"NaN")), "no_load"),
        (never_ends, "too_long"),
        (never_answers, "slow"),
        (stops_in_the_middle, "slow"),
        (dies, "failed"),
        (writes_garbage, "failed"),
    ],
)
@in_loop
async def test_a_bad_pod_spoils_only_what_is_known_of_its_own_load(
    bad: Behaviour, outcome: str
) -> None:
    async with fleet(bad, says(waiting(1)), options=OFTEN, polls=True) as them:
        them.gateway.sweep(them.now())
        await so(lambda: polls(them).get(outcome, 0) >= 1 and polls(them).get("read", 0) >= 2)
        assert set(polls(them)) == {outcome, "read"}
        assert ("a", 0) not in loads(them)
        assert (await them.ask(post()))[0].status == 200
        assert not them.proxy.fleet.resting


@in_loop
async def test_a_pod_that_is_removed_is_not_asked_any_more() -> None:
    async with fleet(says(waiting(1)), says(waiting(1)), options=OFTEN, polls=True) as them:
        them.gateway.sweep(them.now())
        await so(lambda: len(loads(them)) == 2)
        them.service.delete(A)
        before = polls(them)["read"]
        await so(lambda: polls(them)["read"] > before + 1)  # One may have been on its way.
        number = len(them.engines["a"].asked)
        await so(lambda: polls(them)["read"] > before + 4)
        assert len(them.engines["a"].asked) == number


@in_loop
async def test_nobody_is_asked_if_metrics_s_is_infinite() -> None:
    async with fleet(says(waiting(1))) as them:
        them.gateway.sweep(them.now())
        await asyncio.sleep(0.01)
        assert not them.engines["a"].asked


def test_the_log_says_when_load_becomes_unknown_and_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_loop
    async def run() -> None:
        async with fleet(says(b"", "404 Not Found"), options=OFTEN, polls=True) as them:
            them.gateway.sweep(them.now())
            await so(lambda: polls(them).get("refused", 0) >= 3)
            them.engines["a"].behaviour = says(waiting(1))
            await so(lambda: polls(them).get("read", 0) >= 2)

    with caplog.at_level(logging.INFO, "kvbraid.pods"):
        run()
    told = [record.getMessage() for record in caplog.records if "load_" in record.getMessage()]
    assert told == [
        "pod a: load_unknown: its metrics: refused",
        "pod a: load_known: its metrics are read again",
    ]
