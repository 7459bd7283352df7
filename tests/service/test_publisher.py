"""The publisher speaks the engines' wire."""

from collections.abc import Iterator

import pytest
import zmq
from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.service.feeds.publisher import Publisher

from tests.service.engines import LOOPBACK, open_publisher, open_socket, seq_bytes
from tests.service.recording_sink import TIMEOUT_S

END = b"\xff" * 8


@pytest.fixture
def dealer() -> Iterator[zmq.Socket[bytes]]:
    with open_socket(zmq.DEALER) as opened:
        yield opened


def replayed(dealer: zmq.Socket[bytes], publisher: Publisher, start: int) -> list[list[bytes]]:
    assert publisher.replay_endpoint is not None
    dealer.connect(publisher.replay_endpoint)
    dealer.send_multipart([b"", seq_bytes(start)])
    answers = [dealer.recv_multipart()]
    while answers[-1][-2] != END:
        answers.append(dealer.recv_multipart())
    return answers


def test_batches_are_numbered_from_0_and_carry_the_topic() -> None:
    with (
        open_publisher(topic="kv@a@m") as publisher,
        open_socket(zmq.SUB) as sub,
    ):
        sub.subscribe(b"")
        sub.connect(publisher.endpoint)
        assert publisher.wait_subscribed(TIMEOUT_S)
        assert [publisher.publish(b"x"), publisher.publish(b"y")] == [0, 1]
        assert sub.recv_multipart() == [b"kv@a@m", seq_bytes(0), b"x"]
        assert sub.recv_multipart() == [b"kv@a@m", seq_bytes(1), b"y"]


def test_replay_answers_from_the_start_asked_for_with_the_topic(
    dealer: zmq.Socket[bytes],
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK, topic="t") as publisher:
        for payload in (b"x", b"y", b"z"):
            publisher.publish(payload)
        assert replayed(dealer, publisher, 1) == [
            [b"", b"t", seq_bytes(1), b"y"],
            [b"", b"t", seq_bytes(2), b"z"],
            [b"", b"", END, b""],
        ]


def test_the_older_framing_has_no_topic(dealer: zmq.Socket[bytes]) -> None:
    with open_publisher(replay_endpoint=LOOPBACK, topic="t", replay_framing="bare") as publisher:
        publisher.publish(b"x")
        assert replayed(dealer, publisher, 0) == [[b"", seq_bytes(0), b"x"], [b"", END, b""]]


def test_only_the_newest_batches_can_be_replayed(dealer: zmq.Socket[bytes]) -> None:
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=2) as publisher:
        for number in range(5):
            publisher.publish(b"%d" % number)
        answers = replayed(dealer, publisher, 0)
        assert [answer[-1] for answer in answers] == [b"3", b"4", b""]


def test_a_malformed_question_is_not_answered_and_harms_nobody(
    dealer: zmq.Socket[bytes],
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as publisher:
        assert publisher.replay_endpoint is not None
        dealer.connect(publisher.replay_endpoint)
        dealer.send_multipart([b"", b"soon"])
        dealer.send_multipart([b"who?"])
        assert replayed(dealer, publisher, 0) == [[b"", b"", END, b""]]


def test_without_a_subscriber_waiting_for_one_ends() -> None:
    with open_publisher() as publisher:
        assert not publisher.wait_subscribed(0.05)


def test_a_closed_publisher_refuses_and_closes_again_quietly() -> None:
    publisher = open_publisher(replay_endpoint=LOOPBACK)
    publisher.close()
    publisher.close()
    assert not publisher.wait_subscribed(1.0)
    with pytest.raises(ServiceError, match="is closed"):
        publisher.publish(b"x")


def test_an_address_in_use_is_refused_by_name() -> None:
    with open_publisher() as publisher:
        with pytest.raises(ServiceError, match=publisher.endpoint):
            Publisher(publisher.endpoint, bind=True)
        with pytest.raises(ServiceError, match="cannot bind"):
            Publisher(LOOPBACK, bind=True, replay_endpoint=publisher.endpoint)


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="buffer_batches is 0"):
        Publisher(LOOPBACK, buffer_batches=0)
