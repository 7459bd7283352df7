"""One request as Envoy tells of it: messages in, messages out, in every mode of bodies."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.gateway.envoy.messages import MOST_PIECE_BYTES, Destination
from kvbraid.gateway.envoy.processing import BodyMode, Processing, Reaction, Told
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from kvbraid.gateway.usage import Usage
from kvbraid.service.errors import RefusalError

from tests.service.envoy_streams import (
    DESTINATION,
    changed,
    destination,
    refused,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)

POD = Destination(("10.0.0.1:8000",), {"x-request-id": "r"})
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
USAGE = (
    b'{"usage": {"prompt_tokens": 32, "completion_tokens": 1, '
    b'"prompt_tokens_details": {"cached_tokens": 16}}}'
)
END = Told("end", Usage(32, 16))


class Talk:
    """A stream, its counts, and what it has said so far."""

    def __init__(self, most_bytes: int = 1000) -> None:
        self.counts: Counter[str] = Counter()
        self.stream = Processing(self.counts, most_bytes=most_bytes)
        self.told: list[Told] = []

    def receive(self, *messages: ProcessingRequest) -> list[Reaction]:
        found = [self.stream.receive(message) for message in messages]
        self.told += [told for progress in found for told in progress.told]
        return found

    def kinds(self, *messages: ProcessingRequest) -> list[list[str]]:
        """The kinds of answers to each of these messages, none of which may ask."""
        found = self.receive(*messages)
        assert all(progress.asks is None for progress in found)
        return [kinds_of(progress.replies) for progress in found]

    def close(self, *, is_sent: bool = True) -> list[Told]:
        self.told += self.stream.close(is_sent=is_sent)
        return self.told


def kinds_of(replies: list[ProcessingResponse]) -> list[str]:
    return [reply.WhichOneof("response") or "" for reply in replies]


def bodies_of(replies: list[ProcessingResponse]) -> list[tuple[bytes, bool]]:
    """The pieces that are handed back, and whether each is the last."""
    pieces = [
        getattr(reply, reply.WhichOneof("response") or "").response.body_mutation.streamed_response
        for reply in replies
    ]
    return [(piece.body, piece.end_of_stream) for piece in pieces]


# ---- the request ----------------------------------------------------------------------------


def test_a_buffered_body_is_answered_with_the_destination_and_headers_pass_at_once() -> None:
    talk = Talk()
    assert talk.kinds(request_headers(BodyMode.BUFFERED)) == [["request_headers"]]
    [progress] = talk.receive(request_body(b"body"))
    assert progress.asks is not None
    assert (progress.asks.body, progress.asks.is_cut) == (b"body", False)
    [reply] = talk.stream.send_to(POD)
    assert kinds_of([reply]) == ["request_body"]
    assert destination(reply) == "10.0.0.1:8000"
    assert reply.request_body.response.clear_route_cache


@pytest.mark.parametrize(
    ("length", "ends", "is_cut"),
    [("4", True, False), ("9", False, True), ("4", False, False), ("", False, True)],
)
def test_of_a_partly_buffered_body_it_is_known_whether_there_is_more(
    length: str, ends: bool, is_cut: bool
) -> None:
    talk = Talk()
    head = request_headers(BodyMode.BUFFERED_PARTIAL, content_length=length)
    assert talk.kinds(head) == [["request_headers"]]
    [progress] = talk.receive(request_body(b"body", ends=ends))
    assert progress.asks is not None
    assert progress.asks.is_cut is is_cut
    assert destination(talk.stream.send_to(POD)[0]) == "10.0.0.1:8000"


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, None])
def test_where_headers_leave_before_the_body_they_alone_decide(mode: BodyMode | None) -> None:
    talk = Talk()
    [progress] = talk.receive(request_headers(mode, content_length="40"))
    assert progress.replies == []
    assert progress.asks is not None
    assert (progress.asks.body, progress.asks.is_cut) == (b"", True)
    [reply] = talk.stream.send_to(POD)
    assert kinds_of([reply]) == ["request_headers"]
    later = talk.kinds(request_body(b"a", ends=False), request_body(b"b"))
    assert later == [["request_body"], ["request_body"]]


def test_a_streamed_body_that_comes_before_its_headers_pass_is_read() -> None:
    talk = Talk()
    head = request_headers(BodyMode.STREAMED, early=True)
    assert talk.kinds(head, request_body(b"a", ends=False)) == [[], []]
    [progress] = talk.receive(request_body(b"b"))
    assert progress.asks is not None
    assert (progress.asks.body, progress.asks.is_cut) == (b"ab", False)
    replies = talk.stream.send_to(POD)
    assert kinds_of(replies) == ["request_headers", "request_body", "request_body"]
    assert destination(replies[0]) == "10.0.0.1:8000"
    assert bodies_of(replies[1:]) == [(b"", False)] * 2  # Nothing is handed back in this mode.


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        (b"", [0]),
        (b"x", [1]),
        (b"x" * MOST_PIECE_BYTES, [MOST_PIECE_BYTES]),
        (b"x" * (MOST_PIECE_BYTES + 1), [MOST_PIECE_BYTES, 1]),
    ],
)
def test_in_full_duplex_the_body_is_handed_back_in_pieces(body: bytes, sizes: list[int]) -> None:
    talk = Talk(most_bytes=1 << 20)
    assert talk.kinds(request_headers(DUPLEX), request_body(body, ends=False)) == [[], []]
    [progress] = talk.receive(request_body(b""))
    assert progress.asks is not None
    assert progress.asks.body == body
    head, *rest = talk.stream.send_to(POD)
    assert destination(head) == "10.0.0.1:8000"
    assert kinds_of(rest) == ["request_body"] * len(sizes)
    ends = [False] * (len(sizes) - 1) + [True]
    assert bodies_of(rest) == [(b"x" * size, end) for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("body", [b"", b"body"])
def test_in_full_duplex_trailers_end_a_body(body: bytes) -> None:
    talk = Talk()
    talk.receive(request_headers(DUPLEX))
    if body:
        talk.receive(request_body(body, ends=False))
    [progress] = talk.receive(request_trailers())
    assert progress.asks is not None
    _, *rest = talk.stream.send_to(POD)
    assert kinds_of(rest) == ["request_body"] * bool(body) + ["request_trailers"]
    assert bodies_of(rest[:-1]) == [(body, False)] * bool(body)


def test_trailers_of_a_buffered_request_pass() -> None:
    talk = Talk()
    talk.receive(request_headers(), request_body(b"body", ends=False))
    talk.stream.send_to(POD)
    assert talk.kinds(request_trailers()) == [["request_trailers"]]


def test_a_buffered_request_of_trailers_alone_has_its_destination_as_metadata() -> None:
    talk = Talk()
    talk.receive(request_headers())
    [progress] = talk.receive(request_trailers())
    assert progress.asks is not None
    [reply] = talk.stream.send_to(POD)
    named = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
    assert (kinds_of([reply]), named.string_value) == (["request_trailers"], "10.0.0.1:8000")


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_request_without_a_body_is_decided_at_once_in_every_mode(mode: BodyMode) -> None:
    talk = Talk()
    [progress] = talk.receive(request_headers(mode, method="GET", ends=True))
    assert progress.asks is not None
    assert (progress.asks.body, progress.asks.is_cut) == (b"", False)
    assert kinds_of(talk.stream.send_to(POD)) == ["request_headers"]


def test_what_a_client_could_steer_with_is_overwritten_or_removed() -> None:
    spoofed: dict[str, Any] = {
        "x_gateway_destination_endpoint": "evil:1", "x_gateway_model_name_rewrite": "n",
        "x_data_parallel_rank": "3", "X_Kvbraid_Model": "m", "accept": "*/*",
    }  # fmt: skip
    removed = {"x-gateway-model-name-rewrite", "x-data-parallel-rank", "x-kvbraid-model"}
    talk = Talk()
    [[early]] = [progress.replies for progress in talk.receive(request_headers(**spoofed))]
    early_removed = early.request_headers.response.header_mutation.remove_headers
    assert set(early_removed) == removed | {DESTINATION}
    talk.receive(request_body(b""))
    [reply] = talk.stream.send_to(POD)
    assert set(reply.request_body.response.header_mutation.remove_headers) == removed
    assert changed(reply) == {DESTINATION: "10.0.0.1:8000", "x-request-id": "r"}


def test_the_rank_of_a_pod_replaces_the_clients() -> None:
    talk = Talk()
    talk.receive(request_headers(BodyMode.NONE, x_data_parallel_rank="3"))
    [reply] = talk.stream.send_to(Destination(("h:1", "i:2"), {"x-data-parallel-rank": "1"}))
    assert changed(reply) == {DESTINATION: "h:1,i:2", "x-data-parallel-rank": "1"}
    assert destination(reply) == "h:1,i:2"
    assert not reply.request_headers.response.header_mutation.remove_headers


@pytest.mark.parametrize(
    ("hints", "candidates"),
    [
        (None, None),
        (["10.0.0.1:1", "10.0.0.2:1"], ("10.0.0.1:1", "10.0.0.2:1")),
        ("10.0.0.1:1, 10.0.0.2:1", ("10.0.0.1:1", "10.0.0.2:1")),
        (["10.0.0.1:1,10.0.0.2:1"], ("10.0.0.1:1", "10.0.0.2:1")),
        ([], ()),
        ("", ()),
        (7, ()),
        ([7, {"a": "b"}], ()),
    ],
)
def test_hints_are_a_list_or_a_text(hints: object, candidates: tuple[str, ...] | None) -> None:
    [progress] = Talk().receive(request_headers(BodyMode.NONE, hints=hints))
    assert progress.asks is not None
    assert progress.asks.candidates == candidates


def test_a_body_has_a_limit_however_it_comes() -> None:
    talk = Talk(most_bytes=10)
    talk.receive(request_headers(DUPLEX), request_body(b"x" * 10, ends=False))
    with pytest.raises(RefusalError, match="11 bytes; limit 10") as told:
        talk.receive(request_body(b"x", ends=False))
    [reply] = talk.stream.refuse(told.value)
    assert refused(reply) == (413, "body_too_large")
    assert talk.stream.num_kept == 0


@pytest.mark.parametrize("modes", [(5, 0), (0, 5), (-1, 0), (99, 99)])
def test_a_way_of_sending_bodies_that_is_not_known_is_refused(modes: tuple[int, int]) -> None:
    with pytest.raises(RefusalError, match="Envoy sends bodies in the modes"):
        Talk().receive(request_headers(*modes))


def test_only_the_first_message_says_how_bodies_come() -> None:
    talk = Talk()
    talk.receive(request_headers(BodyMode.BUFFERED))
    body = request_body(b"body")
    body.protocol_config.request_body_mode = DUPLEX
    talk.receive(body)
    assert kinds_of(talk.stream.send_to(POD)) == ["request_body"]


# ---- the answer -----------------------------------------------------------------------------


def sent(response_mode: BodyMode = BodyMode.STREAMED) -> Talk:
    """A request that was sent to its pod."""
    talk = Talk()
    talk.receive(request_headers(BodyMode.BUFFERED, response_mode), request_body(b"body"))
    talk.stream.send_to(POD)
    return talk


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED, DUPLEX])
def test_an_answer_passes_and_its_usage_is_read(mode: BodyMode) -> None:
    talk = sent(mode)
    assert talk.kinds(response_headers()) == [["response_headers"]]
    found = talk.receive(response_body(b"data: a\n\n"), response_body(USAGE, ends=True))
    replies = [reply for progress in found for reply in progress.replies]
    assert kinds_of(replies) == ["response_body"] * 2
    expected = [(b"data: a\n\n", False), (USAGE, True)] if mode is DUPLEX else [(b"", False)] * 2
    assert bodies_of(replies) == expected
    assert talk.close() == [Told("first_token"), END]


def test_trailers_end_an_answer() -> None:
    talk = sent(DUPLEX)
    talk.receive(response_headers(), response_body(USAGE))
    assert talk.kinds(response_trailers()) == [["response_trailers"]]
    assert talk.close() == [Told("first_token"), END]


@pytest.mark.parametrize("mode", list(BodyMode))
@pytest.mark.parametrize("status", [400, 503])
def test_an_error_of_an_engine_left_nothing(mode: BodyMode, status: int) -> None:
    talk = sent(mode)
    talk.receive(response_headers(status), response_body(b"{}", ends=True))
    assert talk.close() == [Told("failed")]


def test_an_answer_without_a_body_has_ended() -> None:
    talk = sent()
    talk.receive(response_headers(204, ends=True))
    assert talk.close() == [Told("end")]


@pytest.mark.parametrize(
    ("mode", "messages", "is_sent", "told"),
    [
        (BodyMode.STREAMED, [], True, ["failed"]),
        (BodyMode.STREAMED, [response_headers()], True, ["failed"]),
        (BodyMode.STREAMED, [response_headers(), response_body(b"a")], True,
         ["first_token", "end"]),
        (BodyMode.NONE, [], True, []),  # The access log will tell.
        (BodyMode.NONE, [response_headers()], True, []),
        (BodyMode.NONE, [], False, ["failed"]),
    ],
)  # fmt: skip
def test_a_stream_that_breaks_off_says_what_is_known(
    mode: BodyMode, messages: list[ProcessingRequest], is_sent: bool, told: list[str]
) -> None:
    talk = sent(mode)
    talk.receive(*messages)
    assert [each.event for each in talk.close(is_sent=is_sent)] == told
    assert [each.event for each in talk.close(is_sent=is_sent)] == told  # And says it once.


@pytest.mark.parametrize(
    ("endpoint", "served", "told"),
    [
        ("", "not_told", ["first_token", "end"]),
        ("10.0.0.1:8000", "chosen", ["first_token", "end"]),
        ("10.0.0.2:8000", "other", ["failed"]),
    ],
)
def test_who_has_answered_is_read_back(endpoint: str, served: str, told: list[str]) -> None:
    talk = sent()
    talk.receive(response_headers(served=endpoint), response_body(USAGE, ends=True))
    assert talk.stream.served == served
    assert [each.event for each in talk.close()] == told


def test_without_a_load_balancer_that_says_so_it_is_the_upstream_address() -> None:
    talk = sent()
    message = response_headers()
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.1:8000"})
    talk.receive(message)
    assert talk.stream.served == "chosen"


def test_an_engine_cannot_speak_in_the_gateways_name() -> None:
    [progress] = sent().receive(response_headers(x_kvbraid_pod="z", x_request_id="r"))
    mutation = progress.replies[0].response_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["x-kvbraid-pod"]


# ---- what nobody expects --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "counted"),
    [
        (ProcessingRequest(), "unknown"),
        (ProcessingRequest(observability_mode=True, request_body={"body": b"a"}), "observed"),
    ],
)
def test_messages_without_a_known_kind_and_copies_are_counted(
    message: ProcessingRequest, counted: str
) -> None:
    talk = Talk()
    assert talk.kinds(message) == [[]]
    assert talk.counts == {counted: 1}


def test_messages_out_of_order_change_nothing_and_are_counted() -> None:
    talk = Talk()
    first = request_body(b"a")
    first.protocol_config.request_body_mode = DUPLEX
    assert bodies_of(talk.receive(first)[0].replies) == [(b"a", True)]
    talk.receive(request_headers(DUPLEX), request_body(b"b"))
    assert talk.kinds(request_headers()) == [["request_headers"]]
    assert talk.counts["out_of_order"] == 2
    assert destination(talk.stream.send_to(POD)[0]) == "10.0.0.1:8000"


def test_an_answer_before_any_request_is_let_pass() -> None:
    talk = Talk()
    found = talk.kinds(response_headers(), response_body(USAGE, ends=True), response_trailers())
    assert found == [["response_headers"], ["response_body"], ["response_trailers"]]
    assert talk.close() == []


MODES = st.sampled_from(list(BodyMode))
MESSAGES = st.one_of(
    st.builds(request_headers, MODES, MODES, ends=st.booleans(), early=st.booleans()),
    st.builds(request_body, st.binary(max_size=40), ends=st.booleans()),
    st.builds(request_trailers),
    st.builds(response_headers, st.sampled_from([0, 200, 503]), ends=st.booleans(),
              served=st.sampled_from(["", "10.0.0.1:8000", "10.0.0.2:8000"])),
    st.builds(response_body, st.binary(max_size=40), ends=st.booleans()),
    st.builds(response_trailers),
    st.builds(ProcessingRequest),
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=12), st.booleans(), st.booleans())
def test_no_order_of_messages_breaks_a_stream_or_ends_a_booking_twice(
    messages: list[ProcessingRequest], is_refused: bool, is_sent: bool
) -> None:
    talk, num_asked = Talk(most_bytes=100), 0
    try:
        for message in messages:
            [progress] = talk.receive(message)
            if progress.asks is not None:
                num_asked += 1
                if is_refused:
                    talk.stream.refuse(RefusalError("no_pod", "none"))
                else:
                    talk.stream.send_to(POD)
    except RefusalError as error:
        talk.stream.refuse(error)  # Its body was too long, so it was not asked about.
        is_refused = True
    mode = talk.stream.is_for_the_log
    events = [told.event for told in talk.close(is_sent=is_sent)]
    ends = len(events) - events.count("first_token")
    is_booked = num_asked and not is_refused
    assert num_asked <= 1
    assert events.count("first_token") <= 1
    assert ends <= is_booked
    assert ends == is_booked or (mode and is_sent)
    assert talk.stream.num_kept == 0
