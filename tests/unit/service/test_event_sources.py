"""What is read of an answer about event sockets, and what is refused."""

import json

import pytest
from kvbraid.service.config import Followed, PodBody
from kvbraid.service.event_sources import NoSourceError, read_sources
from kvbraid.service.pod_checks import pod_config

URL = "http://10.0.0.1:8000"


def source(endpoint: object = "tcp://*:5557", **more: object) -> dict[str, object]:
    return {"endpoint": endpoint, "replay_endpoint": None, "topic": "", **more}


def ranked(rank: object, endpoint: object = "tcp://*:5557") -> dict[str, object]:
    return source(endpoint, data_parallel_rank=rank)


def read(answer: object, url: str = URL, dp_size: int = 1) -> Followed:
    body = PodBody(model="m", endpoint="ask", url=url, dp_size=dp_size)
    given = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return read_sources(given, pod_config(body, None, schemes=("tcp",)))


@pytest.mark.parametrize(
    "answer",
    [
        {"0": source(publisher="zmq", buffer_steps=10_000, hwm=100_000, max_queue_size=100_000)},
        [ranked(0)],
        {"sources": [ranked(0)]},
        {"3": source()},  # A server for each rank: this one's is 3.
        [ranked(3)],
    ],
)
def test_every_form_says_the_same(answer: object) -> None:
    assert read(answer) == Followed(model="m", endpoint="tcp://10.0.0.1:5557", bind=False)


@pytest.mark.parametrize(
    "answer",
    [
        {"1": source("tcp://*:5558", replay_endpoint="tcp://*:6558"),
         "0": source("tcp://*:5557", replay_endpoint="tcp://*:6557")},
        [{**ranked(1, "tcp://0.0.0.0:5558"), "replay_endpoint": "tcp://0.0.0.0:6558"},
         {**ranked(0, "tcp://10.0.0.1:5557"), "replay_endpoint": "tcp://10.0.0.1:6557"}],
    ],
)  # fmt: skip
def test_ranks_are_at_the_ports_after_the_first(answer: object) -> None:
    assert read(answer, dp_size=2) == Followed(
        model="m",
        endpoint="tcp://10.0.0.1:5557",
        replay_endpoint="tcp://10.0.0.1:6557",
        bind=False,
        dp_size=2,
    )


@pytest.mark.parametrize(
    ("url", "endpoint", "found"),
    [
        ("http://Pod-0.svc/engine", "tcp://*:1", "tcp://pod-0.svc:1"),
        ("https://pod-0", "tcp://POD-0:65535", "tcp://pod-0:65535"),
        ("http://[fd00::1]:8000", "tcp://[::]:5557", "tcp://[fd00::1]:5557"),
        ("http://[fd00::1]:8000", "tcp://[fd00::1]:5557", "tcp://[fd00::1]:5557"),
    ],
)
def test_the_host_is_that_of_the_url(url: str, endpoint: str, found: str) -> None:
    assert read({"0": source(endpoint)}, url).endpoint == found


@pytest.mark.parametrize(
    ("answer", "why", "told"),
    [
        (b"", "unreadable", "truncated"),
        (b"\xff", "unreadable", ""),
        (b"[" * 100_000, "unreadable", ""),
        (b"\x1f\x8b\x08compressed", "unreadable", ""),
        ("tcp://*:5557", "unreadable", "Expected"),
        ([{"data_parallel_rank": 0}], "unreadable", "endpoint"),
        ({"0": source(5557)}, "unreadable", "endpoint"),
        ({"0": source(replay_endpoint=1)}, "unreadable", "replay_endpoint"),
        ({"0": "tcp://*:5557"}, "unreadable", "Expected"),
        ({"sources": source()}, "unreadable", "sources is no list"),
        ({"0": [ranked(0)]}, "unreadable", "rank '0' is a list"),
        ([ranked("0")], "unreadable", "data_parallel_rank"),
        ({}, "no_events", "--kv-events-config"),
        ([], "no_events", "--kv-events-config"),
        ({"sources": []}, "no_events", "--kv-events-config"),
        ({"0": source(None)}, "no_events", "--kv-events-config"),
        ({"0": source(publisher="null")}, "no_events", "--kv-events-config"),
        ({"0": source(), "1": source()}, "other_ranks", "names the ranks '0', '1'"),
        ([ranked(0), ranked(0)], "other_ranks", "dp_size = 1"),
        ({"0": source("tcp://10.0.0.2:5557")}, "other_host", "its url is of 10.0.0.1"),
        ({"0": source("tcp://localhost:5557")}, "other_host", "'tcp://localhost:5557'"),
        (
            {"0": source(replay_endpoint="tcp://10.0.0.2:1")},
            "other_host",
            "rank 0 has replay_endpoint",
        ),
        ({"0": source("ipc:///tmp/events")}, "no_port", "expected tcp://HOST:PORT"),
        ({"0": source("tcp://*:0")}, "no_port", "expected tcp://HOST:PORT"),
        ({"0": source("tcp://*:65536")}, "no_port", "expected tcp://HOST:PORT"),
        ({"0": source("tcp://*:5557;tcp://*:1")}, "no_port", "expected tcp://HOST:PORT"),
        ({"0": source("tcp://10.0.0.1@evil:5557")}, "no_port", "expected tcp://HOST:PORT"),
        ({"0": source("x" * 100_000)}, "no_port", "expected tcp://HOST:PORT"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(answer: object, why: str, told: str) -> None:
    with pytest.raises(NoSourceError) as refused:
        read(answer)
    assert refused.value.why == why
    assert told in str(refused.value)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "why", "told"),
    [
        ({"0": source()}, "other_ranks", "the ranks '0', and the pod has dp_size = 2"),
        ({"0": source(), "2": source("tcp://*:5559")}, "other_ranks", "dp_size = 2"),
        ({str(rank): source() for rank in range(1000)}, "other_ranks", "'7', and the pod"),
        ({"0": source(), "1": source("tcp://*:5559")}, "no_port", "not port 5558"),
        (
            {
                "0": source(replay_endpoint="tcp://*:6557"),
                "1": source("tcp://*:5558", replay_endpoint=None),
            },
            "no_port",
            "rank 1 has replay_endpoint",
        ),
    ],
)
def test_ranks_that_do_not_fit_are_refused(answer: object, why: str, told: str) -> None:
    with pytest.raises(NoSourceError) as refused:
        read(answer, dp_size=2)
    assert (refused.value.why, told in str(refused.value)) == (why, True), refused.value
