"""Addresses and topics."""

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.service.endpoints import engine_binds, rank_endpoint, subscriber_binds, topic_names


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"),
        ("tcp://10.0.0.1:5557", 3, "tcp://10.0.0.1:5560"),
        ("tcp://*:5557", 1, "tcp://*:5558"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("tcp://127.0.0.1:0", 0, "tcp://127.0.0.1:0"),
        ("tcp://127.0.0.1:*", 0, "tcp://127.0.0.1:*"),
        ("inproc://events", 0, "inproc://events"),
        ("inproc://events", 2, "inproc://events_dp2"),
        ("ipc:///run/events", 0, "ipc:///run/events"),
    ],
)
def test_rank_r_of_a_tcp_endpoint_has_port_plus_r(endpoint: str, rank: int, expected: str) -> None:
    assert rank_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize(
    ("endpoint", "rank", "named"),
    [
        ("10.0.0.1:5557", 0, "write tcp://HOST:PORT"),
        ("http://10.0.0.1:5557", 0, "'http://10.0.0.1:5557'"),
        ("tcp://", 0, "write tcp://HOST:PORT"),
        ("tcp://host", 0, "no port between 0 and 65535"),
        ("tcp://:5557", 0, "no port between 0 and 65535"),
        ("tcp://host:65536", 0, "no port between 0 and 65535"),
        ("tcp://host:-1", 0, "no port between 0 and 65535"),
        ("tcp://host:65535", 1, "name a port between 1 and 65534"),
        ("tcp://host:0", 1, "rank r uses port"),
        ("ipc:///run/events", 1, "use tcp, or dp_size 1"),
    ],
)
def test_an_endpoint_without_a_place_for_the_rank_is_refused(
    endpoint: str, rank: int, named: str
) -> None:
    with pytest.raises(InvalidValueError, match=named) as refusal:
        rank_endpoint(endpoint, rank)
    assert repr(endpoint) in str(refusal.value)


@pytest.mark.parametrize(
    ("endpoint", "engine", "subscriber"),
    [
        ("tcp://*:5557", True, True),
        ("tcp://[::]:5557", True, True),
        ("tcp://0.0.0.0:5557", False, True),
        ("tcp://10.0.0.1:5557", False, False),
        ("ipc:///run/events", True, False),
        ("inproc://events", True, False),
    ],
)
def test_who_binds_by_default(endpoint: str, engine: bool, subscriber: bool) -> None:
    assert engine_binds(endpoint) is engine
    assert subscriber_binds(endpoint) is subscriber


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (b"kv@pod-1@org/model", ("pod-1", "org/model")),
        (b"kv@pod-1@model@fp8", ("pod-1", "model@fp8")),
        (b"kv@@", ("", "")),
        (b"kv@pod-1", None),
        (b"events@pod-1@model", None),
        (b"", None),
    ],
)
def test_a_topic_names_pod_and_model_split_on_the_first_two_at_signs(
    topic: bytes, expected: tuple[str, str] | None
) -> None:
    assert topic_names(topic) == expected
