"""The native decoder and the obvious model agree, on good events, odd values and broken bytes."""

from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kvbraid._native import decode_batch
from kvbraid.events import decode

from tests.reference import wire as model

U64 = st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, 300) | U64 | st.integers(0, 2**32 - 1) | st.sampled_from(["a", "é"])
HASH = U64 | st.integers(-(2**63), 3) | st.binary(min_size=1, max_size=40)
WORDS = st.sampled_from(["", "a", "lora", "salt", "é"])
ITEM = st.lists(WORDS | st.binary(max_size=3) | st.tuples(WORDS, st.integers(-9, 9)), max_size=3)
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | WORDS
    | st.binary(max_size=9) | st.just(msgpack.ExtType(5, b"x")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), max_size=6)
TWO = st.lists(TOKENS, max_size=2)

MM_KEY = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("mm_key"),
        "hash": WORDS | ODD,
        "start_offset": st.integers(-1, 2**32),
        "uuid": st.none() | WORDS,
    },
)

COMPONENT = st.sampled_from(["full", "swa", "mamba", "indexer"])

STORED: dict[str, st.SearchStrategy[Any]] = {
    "block_hashes": st.lists(HASH, max_size=3),
    "parent_block_hash": st.none() | HASH,
    "token_ids": st.none() | st.lists(TOKENS, max_size=8) | PAIRS,
    "block_size": st.integers(0, 3),
    "lora_id": st.none() | st.integers(0, 2),
    "medium": st.none() | st.sampled_from(["GPU", "cpu_pinned", "Disk", "Mooncake", "swa", ""]),
    "lora_name": st.none() | WORDS,
    "extra_keys": st.none() | st.lists(st.none() | ITEM | WORDS, max_size=3),
    "group_idx": st.none() | st.integers(-1, 3) | st.sampled_from((255, 256, 65535, 2**64 - 1)),
    "kv_cache_spec_kind": st.none() | st.sampled_from([*sorted(model.KINDS), "new_kind"]),
    "kv_cache_spec_sliding_window": st.none() | st.integers(0, 2048),
    "locality": st.none() | st.sampled_from(["LOCAL", "remote", "FAR"]),
    "ownership": st.none() | WORDS,
    "lookahead_token_ids": st.none() | st.lists(TWO, max_size=3),
    "cache_salt": st.none() | WORDS,
    "component_type": st.none() | COMPONENT,
    "component_types": st.none() | st.lists(COMPONENT, max_size=3),
    "mm_keys": st.none() | st.lists(st.lists(MM_KEY, max_size=2) | ODD, max_size=3),
    "later_field": ODD,
}
REMOVED = {
    name: STORED[name]
    for name in ("block_hashes", "medium", "group_idx", "ownership", "component_type")
}
TAGS = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": {}, "Moved": {}}


@st.composite
def events(draw: st.DrawFn) -> object:
    """An event that is mostly right; now and then a field is odd or missing, or blocks agree."""
    tag = draw(st.sampled_from(["BlockStored"] * 5 + list(TAGS)))
    fields = {name: draw(strategy) for name, strategy in TAGS[tag].items()}
    if tag == "BlockStored" and draw(st.booleans()):
        num_blocks = len(fields["block_hashes"])
        listed = ("extra_keys", st.none() | ITEM), ("lookahead_token_ids", TWO)
        for name, entry in (*listed, ("mm_keys", st.lists(MM_KEY, max_size=2))):
            fields[name] = draw(
                st.none() | st.lists(entry, min_size=num_blocks, max_size=num_blocks)
            )
    if draw(st.integers(0, 5)) == 0 and fields:
        fields[draw(st.sampled_from(sorted(fields)))] = draw(ODD)
    if draw(st.booleans()):
        named = list(({"type": tag} | fields).items())
        kept = draw(st.lists(st.sampled_from(named), unique_by=lambda pair: pair[0]))
        return dict(kept if draw(st.integers(0, 4)) == 0 else named)
    metadata = {"cache_salt": fields.pop("cache_salt", None), "session_id": 1}
    if draw(st.booleans()) and tag == "BlockStored":
        fields["lora_name"] = metadata
    num_fields = draw(st.integers(0, 16) | st.just(16))
    return [tag, *list(fields.values())[:num_fields]]


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """A batch in which events may repeat, as groups of one model do."""
    listed = draw(st.lists(events(), max_size=4)) + draw(st.lists(ODD, max_size=1))
    repeated = [event for event in listed for _ in range(draw(st.integers(1, 2)))]
    head = draw(st.floats(allow_nan=False) | st.integers(0, 2**40) | st.sampled_from([None, "x"]))
    tail = draw(st.lists(st.integers(-1, 3) | st.sampled_from((4095, 4096)) | ODD, max_size=2))
    return bytes(msgpack.packb([head, repeated, *tail]))


def assert_agreement(payload: bytes) -> None:
    assert decode_batch(payload) == model.decode_batch(payload)


@given(payloads())
@settings(deadline=None)
def test_the_decoder_agrees_with_the_model_on_events_good_and_odd(payload: bytes) -> None:
    assert_agreement(payload)


@given(payloads())
@settings(deadline=None)
def test_decoded_events_are_what_their_constructors_accept(payload: bytes) -> None:
    for event in decode(payload).events:
        assert replace(event) == event


@given(payloads(), st.data())
@settings(deadline=None)
def test_the_decoder_agrees_with_the_model_on_broken_bytes(
    payload: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(payload)))
    piece = data.draw(st.binary(max_size=3))
    broken = payload[:at] + piece + payload[at + data.draw(st.integers(0, 3)) :]
    # The library makes times of extension type -1, and refuses those of a wrong length.
    assume(not any(0xC7 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8 for byte in broken))
    assert_agreement(broken)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")
def test_no_bytes_make_the_decoder_raise(payload: bytes) -> None:
    decode_batch(payload)


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_the_decoder_agrees_with_the_model_on_truncated_bytes(cut: int) -> None:
    payload = msgpack.packb([1.0, [["AllBlocksCleared"]] * 3, 0])
    assert_agreement(payload[:cut])
