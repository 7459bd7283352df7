"""Calls and their replicas: booked once, released by whoever tells, and always answered."""

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.choosing import HandleCall

from tests.unit.integrations.deployments import Deployment, FakeReplica, NamedId, call, facts

A, B, C = (PodId(name) for name in "abc")
ALL = ("a", "b", "c")


def ask(fleet: Deployment, asked: HandleCall) -> str:
    return asyncio.run(fleet.ask(asked))


def test_the_replica_that_holds_a_prompt_gets_it_and_the_others_come_next() -> None:
    fleet = Deployment()
    fleet.store("b", range(1600))
    ranks, decision = asyncio.run(fleet.chooser.rank(call(), fleet.replicas))
    assert decision is not None
    assert (decision.rank, decision.lower) == ((B, 0), 1584)
    assert [len(rank) for rank in ranks] == [1, 2, 3]
    assert [replica.replica_id.unique_id for replica in ranks[0]] == ["b"]
    assert {replica.replica_id.unique_id for replica in ranks[1]} == {"a", "c"}


def test_a_call_is_booked_once_however_often_it_is_asked_about() -> None:
    fleet, asked = Deployment(), call()
    last = ask(fleet, asked)
    for fleet.now in (0.1, 0.2, 0.3):
        last = ask(fleet, asked)
    assert fleet.chooser.router.num_booked() == fleet.chooser.counts()["in_flight"] == 1
    fleet.chooser.sent(asked)
    fleet.chooser.completed("call0", PodId(last))
    assert fleet.chooser.router.num_booked() == 0
    fleet.chooser.check_integrity()


def test_the_calls_of_one_request_share_its_id_and_are_booked_apart() -> None:
    fleet = Deployment()
    calls = [call(0, range(at, at + 1600)) for at in (0, 5000, 9000)]
    chosen = [ask(fleet, each) for each in calls]
    assert sorted(chosen) == ["a", "b", "c"]
    assert fleet.chooser.router.num_booked() == 3
    for each in calls:
        fleet.chooser.sent(each)
    fleet.chooser.completed("call0", PodId(chosen[1]))
    assert [fleet.chooser.router.running((pod, 0)) for pod in (A, B, C)] == [
        int(pod != chosen[1]) for pod in ALL
    ]
    fleet.chooser.completed("call0", PodId(chosen[1]))  # It has no other call there.
    assert fleet.chooser.router.num_booked() == 2
    fleet.chooser.check_integrity()


def test_a_call_that_went_elsewhere_is_booked_there() -> None:
    fleet, asked = Deployment(), call()
    chosen = PodId(ask(fleet, asked))
    other = next(pod for pod in (A, B, C) if pod != chosen)
    fleet.chooser.sent(asked, other)
    assert fleet.chooser.counts()["moved"] == 1
    assert fleet.chooser.router.running((other, 0)) == 1
    fleet.chooser.completed("call0", chosen)  # The replica that was full has rejected it.
    assert fleet.chooser.router.num_booked() == 1
    fleet.chooser.completed("call0", other)
    assert fleet.chooser.router.num_booked() == 0


def test_a_call_that_somebody_else_sends_ends_when_its_prefill_should_have_ended() -> None:
    fleet = Deployment(kwargs={"router": {"grace_s": 1.0, "seconds": {"m": {"per_token": 1e-3}}}})
    ask(fleet, call(0))
    ask(fleet, sent := call(1, range(5000, 6600)))
    fleet.chooser.sent(sent)
    fleet.now = 2.5
    ask(fleet, call(2, range(9000, 9016)))
    assert fleet.chooser.router.num_booked() == 3  # 1.6 s of prefill, and a second of grace.
    fleet.now = 3.0
    ask(fleet, call(3, range(9100, 9116)))
    assert fleet.chooser.router.booking("call0.0") is None
    assert fleet.chooser.router.booking("call1.1") is not None
    assert fleet.chooser.router.num_booked() == 3
    fleet.chooser.check_integrity()


def test_it_stays_booked_as_long_as_its_replica_has_as_many_in_flight() -> None:
    fleet = Deployment(names=("a",), kwargs={"router": {"grace_s": 1.0}})
    fleet.chooser.follow([facts("a", stats={"kvbraid": {"running": 2, "waiting": 1}})])
    for number in range(5):
        ask(fleet, call(number, range(100 * number, 100 * number + 64)))
    fleet.now = 0.5
    ask(fleet, call(5))
    assert fleet.chooser.router.num_booked() == 6  # No prefill should have ended yet.
    fleet.now = 1.2
    ask(fleet, call(6))
    booked = [fleet.chooser.router.booking(f"call{number}.{number}") for number in range(7)]
    assert [each is not None for each in booked] == [False] * 3 + [True] * 4
    fleet.chooser.follow([facts("a", stats={"kvbraid": {"running": 0}})])
    fleet.now = 9.0
    ask(fleet, call(7))
    assert fleet.chooser.router.num_booked() == 1
    fleet.chooser.check_integrity()


def test_calls_of_a_replica_that_is_gone_or_dead_are_released() -> None:
    fleet = Deployment()
    calls = [call(number, range(5000 * number, 5000 * number + 1600)) for number in range(3)]
    for each in calls:
        ask(fleet, each)
        fleet.chooser.sent(each)
    fleet.chooser.follow([facts("b"), facts("c")])
    assert fleet.chooser.router.num_booked() == 2
    fleet.chooser.died(B)
    assert fleet.chooser.router.num_booked() == 1
    fleet.replicas = [each for each in fleet.replicas if each.replica_id.unique_id == "c"]
    assert ask(fleet, call(9)) == "c"
    fleet.chooser.check_integrity()


def test_what_the_router_releases_by_time_is_forgotten_here_too() -> None:
    fleet = Deployment(kwargs={"router": {"hold_s": 5.0}})
    ask(fleet, asked := call())
    fleet.chooser.sent(asked)
    for fleet.now in (6.0, 7.0):
        ask(fleet, call(1))
    assert fleet.chooser.counts()["released_by_time"] == 1
    fleet.chooser.check_integrity()


def test_a_replica_that_nobody_knows_yet_still_gets_calls() -> None:
    fleet = Deployment()
    stranger = FakeReplica(NamedId("new"))
    ranks, _ = asyncio.run(fleet.chooser.rank(call(), [*fleet.replicas, stranger]))
    assert stranger in ranks[-1]
    ranks, decision = asyncio.run(fleet.chooser.rank(call(1), [stranger]))
    assert (ranks, decision) == ([[stranger], [stranger]], None)
    assert fleet.chooser.counts()["failed_choices"] == 1
    assert fleet.chooser.router.num_booked() == 1


def test_whatever_fails_ray_gets_replicas(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Deployment()
    monkeypatch.setattr(FleetIndex, "score", lambda *_, **__: 1 / 0)
    for number in range(2):
        ranks, decision = asyncio.run(fleet.chooser.rank(call(number), fleet.replicas))
        assert decision is None
        assert len(ranks[0]) == 2
        assert ranks[1] == fleet.replicas
    assert fleet.chooser.counts()["failed_choices"] == 2
    assert sum("ZeroDivisionError" in record.getMessage() for record in caplog.records) == 1
    fleet.chooser.check_integrity()


def test_a_session_stays_where_it_is_among_equals() -> None:
    chosen = {ask(Deployment(), call(0, session="s")) for _ in range(5)}
    assert len(chosen) == 1
    assert {ask(Deployment(), call(0, session=str(n))) for n in range(20)} == {"a", "b", "c"}


IDS = list(range(100, 164))


class Completion:
    """What a model of pydantic looks like."""

    def model_dump(self, **_: object) -> dict[str, object]:
        return {"prompt": array("I", IDS)}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (([1], 2), {"request_token_ids": IDS}),
        ((IDS,), {}),
        ((tuple(IDS),), {}),
        ((array("I", IDS),), {}),
        ((memoryview(array("Q", IDS)),), {}),
        (({"prompt": IDS, "max_tokens": 3},), {}),
        (({"prompt": [IDS]},), {}),
        ((b'{"prompt": ' + str(IDS).encode() + b"}",), {}),
        ((SimpleNamespace(prompt=IDS, messages=None),), {}),
        ((Completion(),), {}),
        ((), {"prompt": IDS}),
    ],
)
def test_ids_are_read_however_they_are_handed_over(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    fleet = Deployment()
    asked = HandleCall("call", args, kwargs)
    ask(fleet, asked)
    assert asked.request is not None
    assert list(asked.request.token_ids) == IDS
    assert fleet.chooser.counts()["tokens_known"] == 1


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "not_a_prompt"),
        ((object(),), "not_a_prompt"),
        (({"max_tokens": 3},), "not_a_prompt"),
        ((b"no json",), "not_a_prompt"),
        ((b"[1]",), "not_a_prompt"),
        (([1, "x"],), "malformed"),
        (([1, -1],), "malformed"),
        (({"prompt": object()},), "malformed"),
        (({"prompt": ["a", "b"]},), "several_prompts"),
        (("text",), "no_tokenizer"),
        (({"prompt": "text"},), "no_tokenizer"),
        (({"messages": [{"role": "user", "content": "hello"}]},), "no_tokenizer"),
        (({"prompt": [1 << 70]},), "malformed"),
    ],
)
def test_a_call_without_known_tokens_goes_by_load_and_says_why(
    args: tuple[Any, ...], why: str
) -> None:
    fleet = Deployment()
    asked = HandleCall("call", args)
    assert ask(fleet, asked) in ALL
    assert fleet.chooser.counts()[f"tokens_{why}"] == 1
    assert fleet.chooser.router.num_booked() == 1


def test_the_fields_of_a_body_that_separate_caches_count() -> None:
    fleet = Deployment()
    body = {"prompt": IDS, "cache_salt": "s", "priority": 3, "session_id": "x", "model": "other"}
    asked = HandleCall("call", (body,), adapter="lora")
    ask(fleet, asked)
    assert asked.request is not None
    request = asked.request
    assert (request.model, request.cache_salt, request.lora) == ("m", "s", "lora")
    assert (asked.priority, asked.session) == (3, "x")
