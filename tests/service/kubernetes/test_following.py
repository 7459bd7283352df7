"""Pods of Kubernetes come, drain and go, as an API server over HTTP says."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvbraid.ids import PodId
from kvbraid.service.kubernetes import following_tables
from kvbraid.service.kubernetes.api_server import Change
from kvbraid.service.kubernetes.endpoint_slices import read_slice
from kvbraid.service.kubernetes.objects import WantedPorts
from kvbraid.service.pod_checks import PodPlace, pod_at
from kvbraid.service.registry import Service
from kvbraid.service.sharding import Shard

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.kubernetes.following import TABLE, Running, read, running
from tests.service.kubernetes.kube_api import FakeApi, a_slice, endpoint
from tests.service.serving import until


def test_endpoints_come_drain_and_go(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1), endpoint(2), endpoint(3, ready=False))]
    with running(tmp_path, api) as it:
        it.become("1", "2")  # One that was never ready is no pod yet.
        pod = it.service.pods[PodId("inference/engine-1")]
        assert (pod.serving.url, pod.endpoint) == ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True), endpoint(2), endpoint(3)))
        it.become("-1", "2", "3")
        api.tell("ADDED", a_slice("b", endpoint(4)))
        it.become("-1", "2", "3", "4")
        api.tell("MODIFIED", a_slice("a", endpoint(2, ready=False)))
        it.become("-2", "4")
        api.tell("MODIFIED", a_slice("a", endpoint(2)))
        it.become("2", "4")
        api.tell("DELETED", a_slice("a", endpoint(2)))
        it.become("4")
    assert it.counts["listed"] == 1
    assert api.asked[0]["labelSelector"] == "kubernetes.io/service-name=engines"
    assert {"allowWatchBookmarks", "timeoutSeconds"} <= api.asked[1].keys()


def test_a_shard_registers_its_own_endpoints_alone(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", *map(endpoint, range(1, 10)))]
    found: list[str] = []
    for number in (1, 2):
        it = Running(read(tmp_path, api))
        it.service.shard = Shard(number, 2)
        own = [n for n in range(1, 10) if it.service.has(PodId(f"inference/engine-{n}"))]
        with it.followed():
            it.become(*map(str, own))
        found += it.pods()
    assert sorted(found) == [str(number) for number in range(1, 10)]


def test_a_pod_that_drains_keeps_what_is_known_of_it(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.objects = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True)))
        it.become("-1")
    told = [each for each in caplog.messages if each.startswith("pod inference/engine-1: ")]
    assert [each.split(": ")[1] for each in told] == ["registered", "changed"]


def test_a_list_may_have_pages_and_labels(tmp_path: Path, api: FakeApi) -> None:
    api.page = 2
    api.objects = [a_slice(f"s{n}", endpoint(n)) for n in range(5)]
    text = TABLE.replace('service = "engines"', 'selector = "app=vllm,tier in (a,b)"')
    with running(tmp_path, api, text) as it:
        it.become("0", "1", "2", "3", "4")
    assert [each.get("continue") for each in api.asked[:3]] == [None, "2", "4"]
    assert api.asked[0]["labelSelector"] == "app=vllm,tier in (a,b)"


def test_a_watch_that_is_cut_goes_on_where_it_was(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.bookmark(70)
        api.say(b'{"type": "MODIFIED", "object": {"meta')  # And in the middle it closes.
        api.close()
        it.count("failed")
        api.tell("MODIFIED", a_slice("a", endpoint(2), version=71))
        it.become("2")
    watches = [each["resourceVersion"] for each in api.asked if "watch" in each]
    assert watches[:2] == ["1", "70"]
    assert it.counts["listed"] == 1


def test_a_version_that_is_too_old_makes_a_new_list_which_is_compared(
    tmp_path: Path, api: FakeApi
) -> None:
    api.objects = [a_slice("a", endpoint(1), endpoint(2))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        api.objects = [a_slice("c", endpoint(2), endpoint(3))]
        api.tell("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
        it.become("2", "3")
        assert (it.counts["expired"], it.counts["listed"]) == (1, 2)


def test_pods_that_have_drained_go_although_nobody_is_left(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True)))
        it.become("-1")
        api.tell("MODIFIED", a_slice("a"))
        it.become()
    assert it.counts["held"] == 0


def test_a_port_that_has_no_such_name_is_told(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = a_slice("b", endpoint(2)) | {"ports": [{"name": "https", "port": 1}]}
    api.objects = [a_slice("a", endpoint(1)), unnamed]
    with running(tmp_path, api) as it:
        it.become("1")
    assert "inference/engine-2 stays as it is: no port has the name 'events'" in caplog.text


def test_pods_that_others_have_registered_stay_theirs(tmp_path: Path, api: FakeApi) -> None:
    config = read(tmp_path, api)
    api.objects = [a_slice("a", endpoint(1), endpoint(2))]
    it = Running(config)
    pod = PodId("inference/engine-1")
    place = PodPlace("10.9.9.9", (("http", 1), ("events", 2)))
    theirs = pod_at(config.watched[0], place)
    it.service.put(pod, theirs)
    with it.followed():
        it.become("1", "2")
        api.tell("MODIFIED", a_slice("a", endpoint(2)))
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        assert it.service.pods[pod] is theirs
        assert it.counts["not_registered"] == 1  # Not once for each change.


def test_services_are_followed_while_a_server_runs(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    service = Service(FakeIndex(), FakeFeed())
    with following_tables(read(tmp_path, api), service):
        found = until(lambda: list(service.pods), bool)
    assert found == ["inference/engine-1"]


CHANGES = st.tuples(
    st.sampled_from("abc"),
    st.lists(st.builds(endpoint, st.integers(0, 3), ready=st.booleans()), max_size=3),
)


@given(st.lists(CHANGES, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pods_are_what_the_slices_say_after_each_change(
    tmp_path: Path, changes: list[tuple[str, list[dict[str, Any]]]]
) -> None:
    text = TABLE.replace("60.0", "0") + 'namespace = "inference"\n'
    it = Running(read(tmp_path, FakeApi(), text, "https://h"))
    slices: dict[str, list[dict[str, Any]]] = {}
    known: set[int] = set()
    for number, (name, endpoints) in enumerate(changes):
        raw = json.dumps(a_slice(name, *endpoints)).encode()
        ports = WantedPorts(frozenset({"http", "events"}))
        it.table._take(Change(str(number), found=read_slice(raw, ports)))
        it.table.check_integrity()
        slices[name] = endpoints
        said: dict[int, list[bool]] = {}
        for each in (each for held in slices.values() for each in held):
            of = int(each["targetRef"]["name"].removeprefix("engine-"))
            said.setdefault(of, []).append(each["conditions"]["ready"])
        ready = {of for of, are in said.items() if all(are)}
        known = (known & said.keys()) | ready
        assert it.pods() == sorted(f"{'' if of in ready else '-'}{of}" for of in known)
