"""Which headers go on, on either way."""

from kvbraid.gateway.headers import to_client, to_pod


def test_headers_keep_their_order_and_come_as_often_as_they_did() -> None:
    given = [(b"accept", b"a"), (b"x-a", b"1"), (b"accept", b"b"), (b"x-b", "\u00e9".encode())]
    assert to_pod(given) == [("accept", "a"), ("x-a", "1"), ("accept", "b"), ("x-b", "\u00e9")]
    assert to_client(given) == given


def test_a_value_that_is_no_text_does_not_stop_a_request() -> None:
    assert to_pod([(b"x-a", b"\xff")]) == [("x-a", "\ufffd")]


def test_every_connection_header_counts_and_names_may_be_in_capitals() -> None:
    given = [
        (b"connection", b"keep-alive, X-One"), (b"x-one", b"1"), (b"connection", b"x-two"),
        (b"x-two", b"2"), (b"x-three", b"3"),
    ]  # fmt: skip
    assert to_pod(given) == [("x-three", "3")]
    assert to_client([(name.title(), value) for name, value in given]) == [(b"x-three", b"3")]


def test_of_two_lengths_of_an_answer_the_chunks_count() -> None:
    both = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")]
    assert to_client(both) == []
    assert to_client(both[:1]) == [(b"content-length", b"5")]
