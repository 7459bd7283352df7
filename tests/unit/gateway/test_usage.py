"""What the end of an answer says of reuse, however it comes."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.gateway.usage import KEPT_BYTES, Tail, Usage, WithoutUsage, with_usage

CHAT = {"prompt_tokens": 7, "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 4}}
RESPONSES = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}


def usage_of(answer: bytes, *, seed: int = 1) -> Usage:
    """Return what is found in an answer that comes in pieces."""
    tail, rng = Tail(), random.Random(seed)
    while answer:
        size = rng.randint(1, 2000)
        tail.keep(answer[:size])
        answer = answer[size:]
    return tail.usage()


@pytest.mark.parametrize("usage", [CHAT, RESPONSES])
@pytest.mark.parametrize("indent", [None, 2])
def test_both_apis_are_read(usage: object, indent: int | None) -> None:
    answer = {"choices": ["x" * 9000], "usage": usage, "metadata": None}
    assert usage_of(json.dumps(answer, indent=indent).encode()) == Usage(7, 4)


@given(text=st.text(max_size=200), seed=st.integers(0, 99))
def test_no_text_of_a_model_looks_like_a_usage(text: str, seed: int) -> None:
    fake = json.dumps(
        {"usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}}
    )
    answer = {"choices": [{"text": fake + text}], "usage": {"prompt_tokens": 7}}
    assert usage_of(json.dumps(answer).encode(), seed=seed) == Usage(7, None)
    answer["usage"] = CHAT
    answer["system_fingerprint"] = fake
    assert usage_of(json.dumps(answer).encode(), seed=seed) == Usage(7, 4)


def test_the_last_one_of_a_stream_counts() -> None:
    first = json.dumps({"usage": CHAT | {"prompt_tokens_details": {"cached_tokens": 1}}})
    last = json.dumps({"usage": CHAT})
    events = "".join(f"data: {event}\n\n" for event in (first, last, "[DONE]"))
    assert usage_of(events.encode()) == Usage(7, 4)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, {"cached_tokens": -1}])
def test_what_is_not_said_is_not_found(details: object) -> None:
    answer = {"usage": {"prompt_tokens": 7, "prompt_tokens_details": details}}
    assert usage_of(json.dumps(answer).encode()) == Usage(7, None)


@given(st.binary(max_size=3 * KEPT_BYTES))
def test_nothing_that_an_engine_sends_is_too_much(answer: bytes) -> None:
    usage_of(answer)


@given(
    texts=st.lists(st.text(max_size=40), max_size=5),
    end=st.sampled_from(["\n\n", "\r\n\r\n"]),
    seed=st.integers(0, 99),
)
def test_only_the_event_with_the_usage_alone_is_taken_out(
    texts: list[str], end: str, seed: int
) -> None:
    fake = json.dumps({"choices": [], "usage": CHAT})
    shown = [json.dumps({"choices": [{"text": fake + text}], "usage": None}) for text in texts]
    events = [*shown, fake, "[DONE]"]
    answer = "".join(f"data: {event}{end}" for event in events).encode()
    without, rng, seen = WithoutUsage(), random.Random(seed), b""
    while answer:
        size = rng.randint(1, 60)
        piece, answer = answer[:size], answer[size:]
        seen += without.take(piece, is_last=not answer)
        assert seen.endswith((b"\n\n", b"\r\n\r\n")) or not seen
    assert seen == "".join(f"data: {event}{end}" for event in [*shown, "[DONE]"]).encode()


def test_what_never_ends_goes_on_nevertheless() -> None:
    without = WithoutUsage()
    assert without.take(b"x" * KEPT_BYTES, is_last=False) == b""
    assert without.take(b"x", is_last=False) == b"x" * (KEPT_BYTES + 1)
    assert without.take(b"y", is_last=False) == b""
    assert without.take(b"", is_last=True) == b"y"


@pytest.mark.parametrize("body", [b'{"stream":true}', b' \n{ "stream": true, "prompt": "{" }'])
def test_a_body_that_asks_for_the_usage_is_otherwise_the_same(body: bytes) -> None:
    asked = json.loads(with_usage(body))
    assert asked.pop("stream_options") == {"include_usage": True}
    assert asked == json.loads(body)


def test_an_event_ends_with_an_empty_line_however_it_is_cut() -> None:
    tail = Tail()
    tail.keep(b"data: 1\n")
    assert not tail.ends_event()
    tail.keep(b"\n")
    assert tail.ends_event()
