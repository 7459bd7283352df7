"""Replicas come, change, fail and go: what is registered, followed, and counted."""

import asyncio
import logging

import pytest
from kvbraid.ids import PodId

from tests.unit.integrations.deployments import GROUPS, Deployment, call, facts

A, B, C = (PodId(name) for name in "abc")


def test_replicas_that_come_are_followed_and_those_that_go_are_forgotten() -> None:
    fleet = Deployment()
    assert fleet.feed.followed.keys() == fleet.chooser.replicas.pods == {A, B, C}
    assert fleet.chooser.replicas.follow([facts("b"), facts("d")]) == {A, C}
    assert fleet.feed.followed.keys() == {B, PodId("d")}
    assert {info.pod for info in fleet.index.pods()} == {B, PodId("d")}


def test_what_is_said_again_changes_nothing_and_what_is_said_anew_is_followed_anew() -> None:
    fleet = Deployment()
    fleet.store("a", range(160))
    fleet.chooser.follow(facts(name, stats={"kvbraid": {"running": 1}}) for name in "abc")
    assert next(info for info in fleet.index.pods() if info.pod == A).messages > 0
    fleet.chooser.follow([facts("a", port=7), facts("b"), facts("c")])
    assert fleet.feed.followed[A].endpoint == "tcp://10.0.0.1:7"
    assert next(info for info in fleet.index.pods() if info.pod == A).messages == 0


def test_replicas_of_ray_serve_llm_are_followed_once_their_statistics_have_come() -> None:
    fleet = Deployment(names=())
    fleet.chooser.follow([facts("a", said=None)])
    assert fleet.chooser.replicas.counts()["missing"] == 1
    assert not fleet.feed.followed
    stats = {"kv_event_metadata": {"endpoint": "tcp://10.0.0.1:5557"}}
    fleet.chooser.follow([facts("a", said=None, stats=stats)])
    assert fleet.chooser.replicas.counts()["events"] == 1
    assert fleet.feed.followed.keys() == {A}


def test_each_problem_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Deployment(names=())
    with caplog.at_level(logging.WARNING, logger="kvbraid.ray"):
        for running in range(3):
            stats = {"kvbraid": {"running": running}}
            fleet.chooser.follow(
                [facts("a", said={"endpoint": "ipc:///x"}, stats=stats), facts("b")]
            )
    assert [record.getMessage() for record in caplog.records] == [
        "replica a: endpoint = 'ipc:///x'; give tcp://HOST:PORT; other transports: fleet.toml"
    ]
    counts = fleet.chooser.counts()
    assert (counts["replicas_events"], counts["replicas_malformed"]) == (1, 1)


def test_a_load_that_cannot_be_is_no_load() -> None:
    fleet = Deployment(names=())
    fleet.chooser.follow([facts("a", stats={"kvbraid": {"running": 2}})])
    assert fleet.chooser.replicas.load(A) is not None
    fleet.chooser.follow([facts("a", stats={"kvbraid": {"running": "two"}})])
    assert fleet.chooser.replicas.load(A) is None
    assert fleet.chooser.replicas.counts()["events"] == 1


def test_a_replica_that_cannot_be_followed_is_one_without_events() -> None:
    fleet = Deployment(names=())
    fleet.feed.refuses = {A}
    fleet.chooser.follow([facts("a"), facts("b")])
    assert fleet.chooser.replicas.pods == {A, B}
    assert fleet.chooser.replicas.counts() == {
        "events": 1, "malformed": 1, "missing": 0, "refused": 0,
    }  # fmt: skip
    fleet.feed.refuses = {B}  # It fails while it lets go, too.
    fleet.chooser.follow([])
    assert not fleet.index.pods()


def test_a_replica_that_drains_gets_nothing_new() -> None:
    fleet = Deployment(names=("a", "b"))
    fleet.store("a", range(1600))
    said = {"endpoint": "tcp://10.0.0.1:5557", "topology": GROUPS}
    assert asyncio.run(fleet.ask(call())) == "a"
    fleet.chooser.follow([facts("a", said={**said, "drain": True}), facts("b")])
    assert asyncio.run(fleet.ask(call(1))) == "b"
    fleet.chooser.follow([facts("a", said=said), facts("b")])
    assert fleet.chooser.replicas.pods == {A, B}
