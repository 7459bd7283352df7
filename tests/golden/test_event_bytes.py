"""Golden bytes of the events of both engines, written down by hand from the MessagePack table.

Each is checked three times: the library reads the intended values, our decoder reads the intended
events, and our encoder, if it can write this form, writes the same bytes.
"""

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from kvbraid.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    WireForm,
    decode,
    encode_batch,
)

HEAD = "93 cb3ff8000000000000"  # array(3), float64 1.5
RANK_0, NO_RANK = "00", "c0"

VLLM_MAP = (
    HEAD + "93"  # array(3): the events
    "8b a474797065 ab426c6f636b53746f726564"  # map(11) "type": "BlockStored"
    "ac626c6f636b5f686173686573 92 07 cfffffffffffffffff"  # "block_hashes": [7, 2**64 - 1]
    "b1706172656e745f626c6f636b5f68617368 00"  # "parent_block_hash": 0
    "a9746f6b656e5f696473 94 01 ccc8 cdea60 ceffffffff"  # "token_ids": fixint, u8, u16, u32
    "aa626c6f636b5f73697a65 02"  # "block_size": 2
    "a76c6f72615f6964 c0"  # "lora_id": nil
    "a66d656469756d a3475055"  # "medium": "GPU"
    "a96c6f72615f6e616d65 a161"  # "lora_name": "a"
    "aa65787472615f6b657973 92 93 a161 92 a2696d fd a173 92 a161 c40109"  # "extra_keys"
    "a967726f75705f696478 03"  # "group_idx": 3
    "b26b765f63616368655f737065635f6b696e64 ae66756c6c5f617474656e74696f6e"  # "full_attention"
    "84 a474797065 ac426c6f636b52656d6f766564"  # map(4) "type": "BlockRemoved"
    "ac626c6f636b5f686173686573 91 07"  # "block_hashes": [7]
    "a66d656469756d a3475055 a967726f75705f696478 01"  # "medium": "GPU", "group_idx": 1
    "81 a474797065 b0416c6c426c6f636b73436c6561726564" + RANK_0  # map(1) "AllBlocksCleared"
)
VLLM_EVENTS: tuple[Event, ...] = (
    BlockStored(
        block_hashes=(7, 2**64 - 1),
        parent_block_hash=0,
        token_ids=(1, 200, 60_000, 2**32 - 1),
        block_size=2,
        lora_name="a",
        extra_keys=((("im", -3), "s"), (b"\x09",)),
        group_idx=3,
        kv_cache_spec_kind="full_attention",
    ),
    BlockRemoved(block_hashes=(7,), group_idx=1),
    AllBlocksCleared(),
)
VLLM_ARRAY = (
    HEAD + "93"
    "9c ab426c6f636b53746f726564 92 07 cfffffffffffffffff 00"  # array(12): tag, hashes, parent
    "94 01 ccc8 cdea60 ceffffffff 02 c0 a3475055 a161"  # tokens, block size, lora_id, medium, name
    "92 93 a161 92 a2696d fd a173 92 a161 c40109"  # extra keys
    "03 ae66756c6c5f617474656e74696f6e c0"  # group, kind, window
    "94 ac426c6f636b52656d6f766564 91 07 a3475055 01"  # array(4): tag, hashes, medium, group
    "91 b0416c6c426c6f636b73436c6561726564" + RANK_0
)
SGLANG_ARRAY = (
    HEAD + "93"
    "98 ab426c6f636b53746f726564 91 fe ff 92 05 06 02 c0 a3475055"  # hash -2, parent -1
    "81 aa63616368655f73616c74 a173"  # position 7: {"cache_salt": "s"}
    "93 ac426c6f636b52656d6f766564 91 d38000000000000000 a343 5055"  # hash -2**63, medium "CPU"
    "91 b0416c6c426c6f636b73436c6561726564" + NO_RANK
)
SGLANG_EVENTS: tuple[Event, ...] = (
    BlockStored(
        block_hashes=(2**64 - 2,),
        parent_block_hash=2**64 - 1,
        token_ids=(5, 6),
        block_size=2,
        cache_salt="s",
    ),
    BlockRemoved(block_hashes=(2**63,), medium="CPU"),
    AllBlocksCleared(),
)
SGLANG_MAP = (
    HEAD + "93"
    "88 a474797065 ab426c6f636b53746f726564 ac626c6f636b5f686173686573 91 fe"  # no lora_name
    "b1706172656e745f626c6f636b5f68617368 ff a9746f6b656e5f696473 92 05 06"
    "aa626c6f636b5f73697a65 02 a76c6f72615f6964 c0 a66d656469756d a3475055"
    "aa63616368655f73616c74 a173"  # "cache_salt": "s"
    "83 a474797065 ac426c6f636b52656d6f766564"
    "ac626c6f636b5f686173686573 91 d38000000000000000 a66d656469756d a3435055"
    "81 a474797065 b0416c6c426c6f636b73436c6561726564" + NO_RANK
)

GOLDEN: dict[WireForm, tuple[str, tuple[Event, ...], int | None]] = {
    "map": (VLLM_MAP, VLLM_EVENTS, 0),
    "array": (VLLM_ARRAY, VLLM_EVENTS, 0),
    "sglang_map": (SGLANG_MAP, SGLANG_EVENTS, None),
    "sglang_array": (SGLANG_ARRAY, SGLANG_EVENTS, None),
}

# Forms that only engines write: bytes, the events they mean.
OLDER: dict[str, tuple[str, Event]] = {
    "SGLang's first arrays end at the LoRA id": (
        "96 ab426c6f636b53746f726564 91 07 c0 92 05 06 02 c0",
        BlockStored(block_hashes=(7,), parent_block_hash=None, token_ids=(5, 6), block_size=2),
    ),
    "EAGLE pairs": (
        "97 ab426c6f636b53746f726564 91 07 c0 92 92 05 06 92 06 08 02 c0 a3475055",
        BlockStored(
            block_hashes=(7,),
            parent_block_hash=None,
            token_ids=(5, 6),
            block_size=2,
            lookahead_token_ids=((8,),),
        ),
    ),
    "hashes as digests: the last eight bytes count": (
        "95 ab426c6f636b53746f726564 91 c40a ffff0000000000000102 c402 0103 91 05 01",
        BlockStored(block_hashes=(258,), parent_block_hash=259, token_ids=(5,), block_size=1),
    ),
    "bare multimodal identifiers": (
        "99 ab426c6f636b53746f726564 91 07 c0 91 05 01 c0 a3475055 c0 91 91 a2696d",
        BlockStored(
            block_hashes=(7,),
            parent_block_hash=None,
            token_ids=(5,),
            block_size=1,
            extra_keys=(("im",),),
        ),
    ),
    "a sparse store lists fewer hashes than blocks": (
        "95 ab426c6f636b53746f726564 90 07 94 01 02 03 04 02",
        BlockStored(block_hashes=(), parent_block_hash=7, token_ids=(1, 2, 3, 4), block_size=2),
    ),
    "an offload placeholder has no tokens": (
        "97 ab426c6f636b53746f726564 91 07 c0 90 00 c0 a4 6469736b",
        BlockStored(
            block_hashes=(7,),
            parent_block_hash=None,
            token_ids=(),
            block_size=0,
            medium="STORAGE",
        ),
    ),
}


def plain(value: object) -> object:
    """Tuples as lists, as the library reads them."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("form", GOLDEN)
def test_golden_bytes_decode_to_their_events(form: WireForm) -> None:
    text, events, rank = GOLDEN[form]
    assert decode(bytes.fromhex(text)) == EventBatch(ts=1.5, events=events, dp_rank=rank)


@pytest.mark.parametrize("form", GOLDEN)
def test_events_encode_to_their_golden_bytes(form: WireForm) -> None:
    text, events, rank = GOLDEN[form]
    assert encode_batch(events, ts=1.5, dp_rank=rank, form=form).hex() == text.replace(" ", "")


@pytest.mark.parametrize("form", GOLDEN)
def test_golden_bytes_are_what_the_library_writes(form: WireForm) -> None:
    payload = bytes.fromhex(GOLDEN[form][0])
    values: Any = msgpack.unpackb(payload)
    assert msgpack.packb(values) == payload
    stored = values[1][0]
    hashes = stored["block_hashes"] if isinstance(stored, dict) else stored[1]
    assert [value % 2**64 for value in hashes] == list(GOLDEN[form][1][0].block_hashes)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", OLDER)
def test_what_only_engines_write_decodes_to_its_event(name: str) -> None:
    text, event = OLDER[name]
    payload = bytes.fromhex("92 c0 91" + text)
    assert decode(payload) == EventBatch(ts=None, events=(event,))
