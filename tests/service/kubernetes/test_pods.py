"""Pods that a label selects, and those of an InferencePool."""

from pathlib import Path

import pytest
from kvbraid.ids import PodId
from kvbraid.service.kubernetes import api_server
from kvbraid.service.kubernetes.objects import NoAnswerError

from tests.service.kubernetes.following import TABLE, Running, read, running
from tests.service.kubernetes.kube_api import PODS, FakeApi, a_pod, a_pool, that_goes

BY_LABEL = TABLE.replace('service = "engines"', 'pods = "app=vllm"')
OF_POOL = TABLE.replace("service", "pool").replace('port = "http"\n', "", 1)


@pytest.fixture(autouse=True)
def _pods(api: FakeApi) -> None:
    api.path = PODS


def test_pods_with_a_label_come_drain_and_go(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_pod(1), a_pod(2), a_pod(3, ready=False), a_pod(4, podIP="", phase="Pending")]
    with running(tmp_path, api, BY_LABEL) as it:
        it.become("1", "2")
        pod = it.service.pods[PodId("inference/engine-1")]
        assert (pod.serving.url, pod.endpoint) == ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557")
        api.tell("MODIFIED", a_pod(4))
        api.tell("MODIFIED", that_goes(a_pod(1)))
        it.become("-1", "2", "4")
        api.tell("DELETED", that_goes(a_pod(1)))
        it.become("2", "4")
        api.tell("MODIFIED", a_pod(2, phase="Failed"))
        it.become("4")
    assert api.asked[0]["labelSelector"] == "app=vllm"


def test_pods_of_a_pool_are_at_its_target_port(tmp_path: Path, api: FakeApi) -> None:
    api.pool = a_pool(9000, app="vllm", tier="a")
    api.objects = [a_pod(1), a_pod(2)]
    with running(tmp_path, api, OF_POOL) as it:
        it.become("1", "2")
        pod = it.service.pods[PodId("inference/engine-1")]
        assert (pod.serving.url, pod.endpoint) == ("http://10.0.0.1:9000", "tcp://10.0.0.1:5557")
    assert api.asked[0]["labelSelector"] == "app=vllm,tier=a"


def test_each_target_port_of_several_is_a_pod_with_events_of_its_own(
    tmp_path: Path, api: FakeApi
) -> None:
    api.pool = a_pool(9000, 9001)
    api.objects = [a_pod(1)]
    text = OF_POOL + "dp_size = 2\n"
    with running(tmp_path, api, text) as it:
        it.become("1:9000", "1:9001")
        found = [(pod.serving.url, pod.endpoint) for _, pod in sorted(it.service.pods.items())]
        assert found == [
            ("http://10.0.0.1:9000", "tcp://10.0.0.1:5557"),
            ("http://10.0.0.1:9001", "tcp://10.0.0.1:5559"),
        ]
        api.tell("MODIFIED", a_pod(1, ready=False))
        it.become("-1:9000", "-1:9001")


def test_a_pool_that_selects_others_is_followed_after_the_watch(
    tmp_path: Path, api: FakeApi
) -> None:
    api.pool = a_pool(9000, app="old")
    api.objects = [a_pod(1), a_pod(2)]
    with running(tmp_path, api, OF_POOL) as it:
        it.become("1", "2")
        api.pool, api.objects = a_pool(9001, app="new"), [a_pod(2), a_pod(3)]
        api.close()
        it.become("2", "3")
        assert it.service.pods[PodId("inference/engine-2")].serving.url == "http://10.0.0.2:9001"
    assert [*dict.fromkeys(each["labelSelector"] for each in api.asked)] == ["app=old", "app=new"]


@pytest.mark.parametrize(
    ("pool", "why"),
    [(None, "refused"), ({}, "unreadable"), ({"spec": "x" * (5 << 20)}, "too_long")],
)
def test_a_pool_that_is_gone_or_unreadable_changes_nothing(
    tmp_path: Path, api: FakeApi, pool: object, why: str
) -> None:
    api.pool = a_pool()
    api.objects = [a_pod(1)]
    with running(tmp_path, api, OF_POOL) as it:
        it.become("1")
        api.pool = pool
        api.close()
        it.count(why, 2)
        assert it.pods() == ["1"]
        api.pool, api.objects = a_pool(), [a_pod(1), a_pod(2)]
        it.become("1", "2")


def test_five_thousand_pods_of_ten_kilobytes_each_are_listed(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "LIST_S", 300.0)
    api.page = 200
    api.objects = [a_pod(number, message="x" * 10_000) for number in range(5000)]
    api.tell("MODIFIED", that_goes(a_pod(0)))
    api.close()
    it = Running(read(tmp_path, api, BY_LABEL))
    with pytest.raises(NoAnswerError, match="peer closed"):
        it.table.ask()
    it.table.check_integrity()
    assert len(it.service.pods) == 1024
    assert it.counts["too_many_pods"] == 5000 - 1024
    assert it.service.pods[PodId("inference/engine-0")].serving.drain
