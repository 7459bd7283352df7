"""What replicas say: to bytes and back, and every other bytes are refused by a word."""

from array import array
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.fleet import Request
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId
from kvbraid.policy import RankLoad
from kvbraid.service.shared.messages import (
    MOST_BYTES,
    MOST_TOKENS,
    LoadMessage,
    SentMessage,
    SentRequest,
    Speaker,
    WrongMessageError,
    from_bytes,
)

A = (PodId("a"), 1)
ROW = ["a", 1, 2, 20, 1, 10, 500]
SENT = [1, "r", 0, 1.0, "a", 1, 2.5, "m", b"\1\0\0\0\2\0\0\0", None, None, None]


def packed(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


counts = st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)).map(sorted)
tokens = st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)).map(sorted)
loads = st.builds(
    lambda c, t, us: RankLoad(c[1], t[1], c[0], t[0], us), counts, tokens, st.integers(0, 10**9)
)
ranks = st.tuples(st.text(min_size=1, max_size=8).map(PodId), st.integers(0, 1 << 31))


@given(st.dictionaries(ranks, loads), st.floats(0, 1e9))
def test_what_is_booked_comes_back(booked: dict[tuple[PodId, int], RankLoad], at: float) -> None:
    message = from_bytes("load", Speaker("run").load(booked, at))
    assert isinstance(message, LoadMessage)
    assert (message.loads, message.at_s, message.number) == (booked, at, 0)


@pytest.mark.parametrize("ids", [[1, 2, 3], array("I", [1, 2]), memoryview(array("I", [7]))])
def test_a_request_comes_back(ids: list[int]) -> None:
    request = Request(model="m", token_ids=ids, lora="l", cache_salt="s", extra_key="k")
    payload = Speaker("run").sent(SentRequest(A, request, 2.5), 1.0)
    assert payload is not None
    message = from_bytes("sent", payload)
    assert isinstance(message, SentMessage)
    rank, back, lasts_s = message.sent
    assert (rank, lasts_s, list(back.token_ids)) == (A, 2.5, list(ids))
    assert (back.model, back.lora, back.cache_salt, back.extra_key) == ("m", "l", "s", "k")


@pytest.mark.parametrize(
    "request_",
    [
        Request(model="m", token_ids=[]),
        Request(model="m", token_ids=range(MOST_TOKENS + 1)),
        Request(model="m", token_ids=[1 << 32]),
        Request(model="m", token_ids=[1], extra_keys=[MediaItem("hash", offset=0, length=1)]),
    ],
)
def test_a_request_that_cannot_be_told_of_is_left_out(request_: Request) -> None:
    assert Speaker("run").sent(SentRequest(A, request_, 1.0), 0.0) is None


def test_the_longest_request_fits() -> None:
    long = Request(model="m" * 512, token_ids=array("I", bytes(4 * MOST_TOKENS)), lora="l" * 512)
    payload = Speaker("r" * 16).sent(SentRequest(A, long, 1.0), 0.0)
    assert payload is not None
    assert len(payload) <= MOST_BYTES
    assert from_bytes("sent", payload).number == 0


def test_numbers_above_their_bounds_are_said_as_these() -> None:
    message = from_bytes("load", Speaker("run").load({A: RankLoad(*[1 << 50] * 5)}, 0.0))
    assert isinstance(message, LoadMessage)
    assert message.loads[A] == RankLoad(1 << 20, 1 << 40, 1 << 20, 1 << 40, 3_600_000_000)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"not MessagePack",
        b"\x91" * 5000,
        packed(2, "r", 0, 1.0, []),
        packed(1, "", 0, 1.0, []),
        packed(1, "r", -1, 1.0, []),
        packed(1, "r", 0, float("nan"), []),
        packed(1, "r", 0, float("inf"), []),
        packed(1, "r", 0, -1.0, []),
        packed(1, "r", 0, 1.0, [], 0),
        packed(1, "r", 0, 1.0),
        packed(1, "r", 0, 1.0, [ROW, ROW]),
        packed(1, "r", 0, 1.0, [ROW[:6]]),
        packed(1, "r", 0, 1.0, [[*ROW[:6], 1.5]]),
        packed(1, "r", 0, 1.0, [["", *ROW[1:]]]),
        packed(1, "r", 0, 1.0, [["a" * 129, *ROW[1:]]]),
        packed(1, "r", 0, 1.0, [["a", -1, *ROW[2:]]]),
        packed(1, "r", 0, 1.0, [["a", 1, -2, 20, 1, 10, 500]]),
        packed(1, "r", 0, 1.0, [["a", 1, (1 << 20) + 1, 20, 1, 10, 500]]),
        packed(1, "r", 0, 1.0, [["a", 1, 2, 20, 3, 10, 500]]),
        packed(1, "r", 0, 1.0, [["a", 1, 2, 20, 1, 21, 500]]),
        packed(1, "r", 0, 1.0, [["a", 1, 2, 20, 1, 10, 3_600_000_001]]),
    ],
)
def test_another_load_is_refused(payload: bytes) -> None:
    with pytest.raises(WrongMessageError, match="malformed"):
        from_bytes("load", payload)


@pytest.mark.parametrize(
    ("place", "value"),
    [(5, -1), (6, -0.5), (6, float("inf")), (7, 3), (8, b""), (8, b"\1\0\0"), (8, [1]), (9, 1)],
)
def test_another_request_is_refused(place: int, value: object) -> None:
    assert from_bytes("sent", packed(*SENT)).number == 0
    with pytest.raises(WrongMessageError, match="malformed"):
        from_bytes("sent", packed(*SENT[:place], value, *SENT[place + 1 :]))


@given(st.sampled_from(["load", "sent"]), st.binary(max_size=200) | st.just(packed(*SENT)))
def test_any_bytes_are_read_or_refused(kind: str, payload: bytes) -> None:
    with suppress(WrongMessageError):
        assert from_bytes(kind, payload).is_sound  # type: ignore[arg-type]


def test_a_message_that_is_too_long_is_not_read() -> None:
    with pytest.raises(WrongMessageError, match="too_long"):
        from_bytes("load", bytes(MOST_BYTES + 1))
