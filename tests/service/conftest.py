"""A service of fakes, and a client of its application."""

from collections.abc import Iterator

import pytest
from kvbraid.service.config import Limits
from kvbraid.service.http.app import Application
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient


@pytest.fixture
def index() -> FakeIndex:
    return FakeIndex()


@pytest.fixture
def feed() -> FakeFeed:
    return FakeFeed()


@pytest.fixture
def service(index: FakeIndex, feed: FakeFeed) -> Service:
    return Service(index, feed, limits=Limits(body_bytes=4096, tokens=64, pods=4))


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(Application(service), raise_server_exceptions=False) as client:
        yield client
