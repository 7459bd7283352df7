"""The bytes of events: golden batches, one per kind, and that bytes and structs say the same.

Fields are in the order of the engine, and absent if it leaves them out. The hashes are made of
the digests of the obvious chain in `tests/reference`; some of these are written down, because the
function must not change either.
"""

from typing import Any

import msgpack  # type: ignore[import-untyped]
from kvbraid.cache import CacheManager, Interval, Need
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, decode
from kvbraid.hashing import EngineHash, ExtraKeys, Lora, MediaItem

from tests.reference.engine_hash import block_hashes
from tests.unit.cache.caches import compute, config, full, mamba, window

DENSE = (
    "93 cb3ff8000000000000 91"  # array(3): float64 1.5, one event
    "8b a474797065 ab426c6f636b53746f726564"  # map(11) "type": "BlockStored"
    "ac626c6f636b5f686173686573 92 cfb7acef72235a141f cfbf3cdd3ec41834be"  # "block_hashes"
    "b1706172656e745f626c6f636b5f68617368 c0"  # "parent_block_hash": nil
    "a9746f6b656e5f696473 98 00 01 02 03 04 05 06 07"  # "token_ids"
    "aa626c6f636b5f73697a65 04"  # "block_size": 4
    "a76c6f72615f6964 c0"  # "lora_id": nil
    "a66d656469756d a3475055"  # "medium": "GPU"
    "a96c6f72615f6e616d65 c0"  # "lora_name": nil
    "aa65787472615f6b657973 92 c0 c0"  # "extra_keys": [nil, nil]
    "a967726f75705f696478 00"  # "group_idx": 0
    "b26b765f63616368655f737065635f6b696e64 ae66756c6c5f617474656e74696f6e"  # "full_attention"
    "00"  # rank 0
)
SPARSE = (
    "93 cb3ff8000000000000 91"
    "8c a474797065 ab426c6f636b53746f726564"  # map(12)
    "ac626c6f636b5f686173686573 91 cfbf3cdd3ec41834be"  # the second block alone
    "b1706172656e745f626c6f636b5f68617368 c0"
    "a9746f6b656e5f696473 98 00 01 02 03 04 05 06 07"  # the tokens of both
    "aa626c6f636b5f73697a65 04"
    "a76c6f72615f6964 c0"
    "a66d656469756d a3475055"
    "a96c6f72615f6e616d65 c0"
    "aa65787472615f6b657973 91 c0"
    "a967726f75705f696478 01"
    "b26b765f63616368655f737065635f6b696e64 ae736c6964696e675f77696e646f77"  # "sliding_window"
    "bc6b765f63616368655f737065635f736c6964696e675f77696e646f77 05"  # the window
    "c0"  # no rank
)
REMOVED = (
    "93 cb3ff8000000000000 91"
    "84 a474797065 ac426c6f636b52656d6f766564"  # map(4) "type": "BlockRemoved"
    "ac626c6f636b5f686173686573 91 cfb7acef72235a141f"
    "a66d656469756d a3475055"
    "a967726f75705f696478 00"
    "c0"
)
CLEARED = (
    "93 cb3ff8000000000000 91"
    "81 a474797065 b0416c6c426c6f636b73436c6561726564"  # map(1) "type": "AllBlocksCleared"
    "c0"
)
EMPTY = "93 cb3ff8000000000000 90 c0"


def golden(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def keys(tokens: list[int], unit: int, extra: ExtraKeys = ExtraKeys()) -> list[int]:  # noqa: B008
    engine = EngineHash(block_size=unit, seed="0")
    return [int.from_bytes(h[-8:], "big") for h in block_hashes(tokens, engine, extra)]


def said(cache: CacheManager) -> list[dict[str, Any]]:
    """The events as any reader of MessagePack has them; their structs must say the same."""
    events = cache.take_events()
    payload = events.to_bytes(1.5, 3)
    assert decode(payload).events == events.structs()
    assert len(events) == len(events.structs())
    ts, maps, rank = msgpack.unpackb(payload)
    assert (ts, rank) == (1.5, 3)
    return [dict(fields) for fields in maps]


def test_a_dense_store() -> None:
    cache = CacheManager(config(full(4)))
    compute(cache, cache.add(list(range(9))), [9])
    events = cache.take_events()
    assert events.to_bytes(1.5, 0) == golden(DENSE)
    first, second = keys(list(range(8)), 4)
    expected = BlockStored(
        block_hashes=(first, second),
        parent_block_hash=None,
        token_ids=tuple(range(8)),
        block_size=4,
        extra_keys=(None, None),
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert events.structs() == decode(golden(DENSE)).events == (expected,)


def test_a_sparse_store_spans_what_it_passed_over() -> None:
    groups = (full(4), window(5, 4))
    cache = CacheManager(config(*groups, retention=Interval(16)))
    request = cache.add(list(range(9)))
    compute(cache, request, [9])
    dense, sparse = cache.take_events().structs()
    assert isinstance(dense, BlockStored)
    assert decode(golden(SPARSE)).events == (sparse,)
    cache.extend(request, list(range(9, 13)))
    cache.allocate([Need(request=request, num_new_tokens=4)])
    event = said(cache)[1]
    assert event["block_hashes"] == []  # Block 2 serves no boundary that is kept.
    assert event["parent_block_hash"] == keys(list(range(8)), 4)[1]
    assert event["token_ids"] == [8, 9, 10, 11]
    assert "extra_keys" not in event


def test_one_batch_per_call_and_its_order() -> None:
    cache = CacheManager(config(full(4), window(5, 4), retention=Interval(16)))
    compute(cache, cache.add(list(range(9))), [9])
    payload = cache.take_events().to_bytes(1.5, None)
    head, tail = golden(DENSE)[:11], golden(SPARSE)[-1:]
    both = golden(DENSE)[11:-1] + golden(SPARSE)[11:-1]
    assert payload == head[:10] + b"\x92" + both + tail
    assert cache.take_events().to_bytes(1.5, None) == golden(EMPTY)


def test_an_evicted_block_is_removed() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(list(range(9)))
    compute(cache, request, [9])
    cache.take_events()
    cache.pool.forget(cache.blocks(request)[0][:1])
    events = cache.take_events()
    assert events.to_bytes(1.5, None) == golden(REMOVED)
    assert events.structs() == (
        BlockRemoved(block_hashes=(keys([0, 1, 2, 3], 4)[0],), group_idx=0),
    )


def test_a_cleared_cache() -> None:
    cache = CacheManager(config(full(4)))
    assert cache.reset()
    events = cache.take_events()
    assert events.to_bytes(1.5, None) == golden(CLEARED)
    assert events.structs() == (AllBlocksCleared(),)


def test_a_partial_store_is_one_hash_block() -> None:
    partial = {"hash_block_size": 4, "partial_hits": True}
    cache = CacheManager(config(full(16), mamba(16), topology=partial))
    tokens = list(range(30))
    compute(cache, cache.add(tokens), [16, 28])
    whole, state, *inside = said(cache)
    hashes = keys(tokens, 4)
    assert (whole["block_hashes"], whole["block_size"]) == ([hashes[3]], 16)
    assert (state["block_hashes"], state["block_size"]) == ([hashes[3]], 16)
    for group, event in enumerate(inside):
        assert event["block_hashes"] == [hashes[6]]
        assert event["parent_block_hash"] == hashes[5]
        assert event["token_ids"] == [24, 25, 26, 27]
        assert (event["block_size"], event["group_idx"]) == (4, group)
        assert event["extra_keys"] == [None]
    assert len(inside) == 2


def test_adapter_salt_and_media_are_said_block_by_block() -> None:
    extra = ExtraKeys(
        lora=Lora("adapter", "/path"),
        cache_salt="salt",
        media=(MediaItem("image", 2, 3), MediaItem("sound", 9, 1)),
    )
    cache = CacheManager(config(full(4)))
    tokens = list(range(100, 117))
    request = cache.add(tokens, extra=extra, lora_id=7, session_id="session")
    compute(cache, request, [17])
    (event,) = said(cache)
    assert event["block_hashes"] == keys(tokens, 4, extra)
    assert (event["lora_id"], event["lora_name"]) == (7, "adapter")
    assert event["session_id"] == "session"
    assert event["extra_keys"] == [
        ["adapter", ["image", 2], "salt"],
        ["adapter", ["image", -2]],
        ["adapter", ["sound", 1]],
        ["adapter"],
    ]


def test_adapter_salt_and_media_come_back_as_structs() -> None:
    extra = ExtraKeys(Lora("adapter", "/path"), "salt", (MediaItem("image", 2, 3),))
    cache = CacheManager(config(full(4)))
    compute(cache, cache.add(list(range(9)), extra=extra, lora_id=7), [9])
    (event,) = cache.take_events().structs()
    assert isinstance(event, BlockStored)
    assert (event.lora_id, event.lora_name) == (7, "adapter")
    assert event.extra_keys == ((("image", 2), "salt"), (("image", -2),))


def test_no_event_is_recorded_where_nobody_asked() -> None:
    silent = config(full(4))
    cache = CacheManager(type(silent)(topology=silent.topology, num_blocks=9))
    compute(cache, cache.add(list(range(9))), [9])
    assert len(cache.take_events()) == 0
    assert cache.take_events().structs() == ()
