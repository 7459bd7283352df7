"""There may be many endpoints, and many objects that cannot be read."""

from pathlib import Path

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import Limits
from kvbraid.service.kubernetes import following

from tests.service.kubernetes.following import running
from tests.service.kubernetes.kube_api import FakeApi, a_slice, endpoint
from tests.service.serving import until


def test_endpoints_above_the_limit_are_refused_by_name(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.objects = [
        a_slice(f"s{first}", *(endpoint(first + n) for n in range(100)))
        for first in range(0, 5000, 100)
    ]
    with running(tmp_path, api, limits=Limits(pods=20)) as it:
        it.count("too_many_pods", 4980)
        assert len(it.service.pods) == 20
        assert it.counts["too_many_pods"] == 4980
        assert "limits.pods = 20, so 4,980 endpoints: inference/engine-1015, " in warnings.text
        api.tell("DELETED", a_slice("s0"))
        gone = PodId("inference/engine-0")
        assert until(lambda: gone in it.service.pods, lambda is_there: not is_there) is False
        assert (
            until(lambda: len(it.service.pods), lambda n: n == 20) == 20
        )  # Others have its place.
        assert it.counts["too_many_pods"] == 4980


def test_there_is_a_limit_of_endpoints_that_are_remembered(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_ENDPOINTS", 3)
    api.objects = [a_slice("a", endpoint(1), endpoint(2)), a_slice("b", endpoint(3), endpoint(4))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        it.count("bad_object")
        for number in range(50):
            api.tell("ADDED", a_slice(f"empty{number}"))
        api.tell("MODIFIED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        assert it.table._found.keys() == {"a", "b"}


def test_many_bad_objects_are_counted_and_few_are_told(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.objects = [{"metadata": {"name": f"bad{number}"}} for number in range(100)]
    with running(tmp_path, api) as it:
        it.count("bad_object", 100)
    assert len([each for each in warnings.messages if "stays as it was" in each]) == 8
