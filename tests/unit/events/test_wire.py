"""Encoding and decoding for people and simulated engines."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.events import (
    AllBlocksCleared,
    BatchRefusal,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    WireForm,
    decode,
    encode_batch,
)
from kvbraid.events.wire import published_at
from kvbraid.spec import SpecKind

STORE = BlockStored(block_hashes=(1,), parent_block_hash=0, token_ids=(1, 2), block_size=2)
HASHES = st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, 2**64 - 1) | st.integers(0, 2**32 - 1) | st.text(min_size=1)
NAMES = st.none() | st.text(min_size=1, max_size=9)
KEYS = st.text(max_size=3) | st.tuples(st.text(max_size=3), st.integers(-9, 9)) | st.binary()


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    hashes = tuple(draw(st.lists(HASHES, max_size=3)))

    def per_block(entry: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
        return st.lists(entry, min_size=len(hashes), max_size=len(hashes)).map(tuple)

    name = draw(NAMES)
    keys = st.lists(KEYS.filter(lambda key: key != name), min_size=1, max_size=3).map(tuple)
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=draw(st.none() | HASHES),
        token_ids=tuple(draw(st.lists(TOKENS, max_size=9))),
        block_size=draw(st.integers(0, 64)),
        lora_id=draw(st.none() | st.integers(-1, 9)),
        medium=draw(st.sampled_from(["GPU", "CPU", "STORAGE", "mooncake"])),
        lora_name=name,
        extra_keys=draw(st.none() | per_block(st.none() | keys)),  # type: ignore[arg-type]
        group_idx=draw(st.none() | st.integers(0, 63)),
        kv_cache_spec_kind=draw(st.none() | st.sampled_from([kind.value for kind in SpecKind])),
        kv_cache_spec_sliding_window=draw(st.none() | st.integers(0, 4096)),
    )


@given(
    st.lists(stores() | st.builds(BlockRemoved, block_hashes=st.tuples(HASHES)), max_size=4),
    st.sampled_from(["map", "array"]),
)
@settings(deadline=None)
def test_what_is_encoded_is_decoded(events: list[Event], form: WireForm) -> None:
    batch = EventBatch(ts=2.0, events=tuple(events), dp_rank=3)
    assert decode(encode_batch(batch, form=form)) == batch


def test_a_map_also_carries_owners_places_and_lookahead() -> None:
    events = (
        replace(STORE, locality="REMOTE", ownership="tier2", lookahead_token_ids=((9,),)),
        BlockRemoved(block_hashes=(1,), locality="REMOTE", ownership="tier2"),
    )
    assert decode(encode_batch(events)).events == events


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("map", {"cache_salt": "s"}),
        ("array", {"ownership": "x"}),
        ("array", {"lookahead_token_ids": ((1,),)}),
        ("sglang_map", {"group_idx": 0}),
        ("sglang_array", {"lora_name": "a"}),
    ],
)
def test_a_field_without_a_place_in_the_form_is_refused(
    form: WireForm, change: dict[str, object]
) -> None:
    (name,) = change
    with pytest.raises(InvalidValueError, match=f"{name} = .* has no place in the form '{form}'"):
        encode_batch([replace(STORE, **change)], form=form)  # type: ignore[arg-type]


def test_time_and_rank_can_be_overridden_and_default_to_zero_and_none() -> None:
    batch = EventBatch(ts=5.0, events=(), dp_rank=1)
    assert decode(encode_batch(batch, ts=6.0, dp_rank=2)) == replace(batch, ts=6.0, dp_rank=2)
    assert decode(encode_batch([])) == EventBatch(ts=0.0, events=())


def test_refusals_come_with_reason_and_index_and_the_rest_is_delivered() -> None:
    good = encode_batch([AllBlocksCleared(), STORE], form="array")
    payload = good.replace(b"AllBlocksCleared", b"AllBlocksCleaned")
    batch = decode(payload)
    assert batch.events == (STORE,)
    assert batch.refused == (BatchRefusal(reason="unknown_event", event_index=0),)


@given(st.floats(min_value=1e-9, max_value=4e9), st.sampled_from(["map", "array"]))
def test_the_time_of_a_batch_is_read_without_its_events(ts: float, form: WireForm) -> None:
    payload = encode_batch([STORE], ts=ts, form=form)
    assert published_at(payload) == decode(payload).ts == ts


@given(st.binary(max_size=40) | st.binary(max_size=9).map(b"\x93\xcb".__add__))
def test_whatever_comes_the_time_is_one_that_the_core_reads_or_none(payload: bytes) -> None:
    found = published_at(payload)
    assert found is None or (found > 0 and found == decode(payload).ts)


@pytest.mark.parametrize("ts", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_no_engine_means_is_none(ts: float) -> None:
    assert published_at(encode_batch([STORE], ts=ts)) is None


def test_a_long_array_has_its_time_further_on() -> None:
    payload = b"\xdc\x00\x10\xcb" + struct.pack(">d", 7.0) + b"\x90" + b"\xc0" * 14
    assert published_at(payload) == decode(payload).ts == 7.0
