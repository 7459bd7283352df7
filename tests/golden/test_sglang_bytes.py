"""Payloads of SGLang 0.5.23 as its own publisher sent them, one of each shape.

`sglang_events.json` has the bytes: the smallest payload of each shape from recordings of the
engine's own scheduler and caches (a tiny model, requests made up). Each is read by a library too,
and written again by our encoder, byte by byte.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import pytest
from kvbraid import FleetIndex, PodId, Request, topology_from_mapping
from kvbraid.engine import EngineProfile
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, decode, encode_batch
from kvbraid.ids import PodState
from kvbraid.spec import EngineDialect

CASES: Final[list[dict[str, str]]] = json.loads(
    (Path(__file__).parent / "sglang_events.json").read_text(encoding="utf-8")
)
PAYLOADS: Final = {case["what"]: bytes.fromhex(case["payload"]) for case in CASES}
PAIRS: Final = "pairs of an engine with EAGLE"
MEDIA: Final = "an image by a number of 62 bits"
ALWAYS: Final = {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size"} | {
    "lora_id",
    "medium",
}


def unpacked(payload: bytes) -> list[dict[str, Any]]:
    """The events as a library reads them."""
    events: list[dict[str, Any]] = msgpack.unpackb(payload)[1]
    return events


def signed(hashes: tuple[int, ...]) -> list[int]:
    return [value - 2**64 if value >= 2**63 else value for value in hashes]


@pytest.mark.parametrize("what", PAYLOADS)
def test_every_event_is_read_as_a_library_reads_it(what: str) -> None:
    batch = decode(PAYLOADS[what])
    assert batch.refused == ()
    assert batch.dp_rank == 0
    events = unpacked(PAYLOADS[what])
    assert [type(event).__name__ for event in batch.events] == [e["type"] for e in events]
    for read, event in zip(batch.events, events, strict=True):
        if isinstance(read, AllBlocksCleared):
            assert event == {"type": "AllBlocksCleared"}  # Defaults are left out.
            continue
        assert signed(read.block_hashes) == event["block_hashes"]
        assert read.medium == event["medium"].removesuffix("_PINNED")
        if isinstance(read, BlockStored):
            firsts = [t[0] if what == PAIRS else t for t in event["token_ids"]]
            assert list(read.token_ids) == firsts
            assert read.block_size * len(read.block_hashes) == len(firsts)
            assert (read.cache_salt, read.lora_name) == (
                event.get("cache_salt"),
                event.get("lora_name"),
            )
            assert set(event) <= ALWAYS | {"cache_salt", "lora_name"}


@pytest.mark.parametrize("what", sorted(PAYLOADS.keys() - {PAIRS}))
def test_our_encoder_writes_the_same_bytes(what: str) -> None:
    def as_sent(event: Event) -> Event:
        if isinstance(event, AllBlocksCleared) or event.medium != "CPU":
            return event
        return replace(event, medium="CPU_PINNED")

    batch = decode(PAYLOADS[what])
    again = replace(batch, events=tuple(as_sent(event) for event in batch.events))
    assert encode_batch(again, form="sglang_map").hex() == PAYLOADS[what].hex()


def test_the_second_tokens_of_pairs_are_the_lookahead_of_each_block() -> None:
    ((stored, *_), (event, *_)) = decode(PAYLOADS[PAIRS]).events, unpacked(PAYLOADS[PAIRS])
    assert isinstance(stored, BlockStored)
    lasts = event["token_ids"][stored.block_size - 1 :: stored.block_size]
    assert stored.lookahead_token_ids == tuple((last[1],) for last in lasts)


def test_shapes_are_what_they_are_called() -> None:
    kinds = {what: decode(payload).events for what, payload in PAYLOADS.items()}
    first, *_ = kinds["the first batch of a life begins with a clear"]
    assert isinstance(first, AllBlocksCleared)
    (merged,) = kinds["a store of pages that continue each other"]
    assert isinstance(merged, BlockStored)
    assert len(merged.block_hashes) > 1
    removals = [
        event
        for event in kinds["one removal of several pages, between stores"]
        if isinstance(event, BlockRemoved)
    ]
    assert len(removals[0].block_hashes) > 1
    media = kinds[MEDIA][-1]
    assert isinstance(media, BlockStored)
    numbers = [token for token in media.token_ids if isinstance(token, int)]
    assert max(numbers) > 1 << 60
    assert min(numbers) < 1 << 32


@pytest.mark.parametrize("what", PAYLOADS)
def test_an_index_takes_them_all_and_answers_with_what_they_store(what: str) -> None:
    first = next((e for e in decode(PAYLOADS[what]).events if isinstance(e, BlockStored)), None)
    assert first is not None
    pairs = {"hash_lookahead": 1} if what == PAIRS else {}
    group = {"kind": "full_attention", "block_size": first.block_size}
    mapping = {"dialect": "sglang", "groups": [group], "alignment": first.block_size, **pairs}
    index, pod = FleetIndex(), PodId("a")
    engine = EngineProfile(dialect=EngineDialect.SGLANG)
    index.register(pod, model="m", topology=topology_from_mapping(mapping), engine=engine)
    index.apply(pod, PAYLOADS[what])
    index.check_integrity()
    (row,) = index.pods()
    assert row.state is PodState.EXACT
    assert set(row.refused) <= {"removed_unknown"}
    if first.parent_block_hash is not None:
        return
    last = first.lookahead_token_ids[-1] if first.lookahead_token_ids else ()
    asked = Request(
        model="m",
        token_ids=[t for t in (*first.token_ids, *last, 7, 7) if isinstance(t, int)],
        cache_salt=first.cache_salt,
        lora=first.lora_name,
        tiers=["gpu", "cpu"],
    )
    (score,) = index.score(asked).rows
    assert (score.lower, score.upper) == (len(first.token_ids),) * 2
