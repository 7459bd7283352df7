"""What tests of Kubernetes share: a fake API server, pauses that are short."""

import logging
from collections.abc import Iterator

import pytest
from kvbraid.service.kubernetes import following

from tests.service.kubernetes.kube_api import FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi().running() as running:
        yield running


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.01)
    monkeypatch.setattr(following, "RETRY_MAX_S", 0.05)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "kvbraid.kubernetes")
    return caplog
