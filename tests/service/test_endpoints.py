"""Addresses and topics."""

import contextlib
import string

import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.service.feeds.endpoints import (
    check_connects,
    engine_binds,
    rank_endpoint,
    subscriber_binds,
    topic_names,
)


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


APART = zmq.Context()  # Its one thread looks the names up that are tried here.


def zeromq_takes(endpoint: str) -> bool:
    """Whether ZeroMQ would connect to it; nothing is listening, and nobody waits."""
    with contextlib.closing(APART.socket(zmq.SUB)) as socket:
        socket.linger = 0
        try:
            socket.connect(endpoint)
        except zmq.ZMQError:
            return False
        return True


def is_taken(endpoint: str) -> bool:
    try:
        check_connects(endpoint)
    except InvalidValueError:
        return False
    return True


@given(
    st.text(string.ascii_letters + string.digits + ".-_[]*%@!", min_size=1, max_size=8),
    st.integers(1, 65535),
)
@example("-engine-7", 6557)
@example(".x", 1)
@example("_x", 1)
@example("engine-7.", 1)
@example("*", 1)
def test_a_host_is_accepted_if_and_only_if_zeromq_accepts_it(host: str, port: int) -> None:
    endpoint = f"tcp://{host}.invalid:{port}"  # A name that exists nowhere.
    assert is_taken(endpoint) == zeromq_takes(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("tcp://-engine-7:6557", "which ZeroMQ refuses"),
        ("tcp://.x:1", "which ZeroMQ refuses"),
        ("tcp://_x:1", "which ZeroMQ refuses"),
        ("tcp://1.2.3.4:0;10.0.0.1:5557", "which ZeroMQ refuses"),
        ("tcp://é:1", "which ZeroMQ refuses"),
        ("tcp://host:\u0665", "no port between"),
        ("tcp://*:5557", "cannot be connected to"),
        ("tcp://host:0", "cannot be connected to"),
        ("tcp://host:*", "cannot be connected to"),
        (f"ipc:///{'x' * 107}", "at most 107 bytes"),
    ],
)
def test_an_endpoint_that_zeromq_would_refuse_is_refused_first(endpoint: str, named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        check_connects(endpoint)


def test_the_longest_path_is_one_that_zeromq_takes() -> None:
    assert zeromq_takes(f"ipc:///{'x' * 106}")
    check_connects(f"ipc:///{'x' * 106}")
    assert not zeromq_takes(f"ipc:///{'x' * 107}")
