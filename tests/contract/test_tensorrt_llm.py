"""What TensorRT-LLM streams over ZeroMQ: bytes built by hand after its sources, none recorded."""

from typing import Any

import pytest
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodState

from tests.contract.prompts import POD, TEXT, an_index, answer, exactly
from tests.contract.wires import SGLANG_FULL, publish, signed

IMAGE = "a1" * 32


def stored(first: int, last: int, **fields: object) -> dict[str, Any]:
    """A store of full blocks: a map without the fields that have their default."""
    return {
        "type": "BlockStored",
        "block_hashes": [signed(TEXT.hash((j + 1) * 16)) for j in range(first, last)],
        "parent_block_hash": signed(TEXT.hash(first * 16)) if first else None,
        "token_ids": list(TEXT.tokens[first * 16 : last * 16]),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(first: int, last: int) -> dict[str, Any]:
    hashes = [signed(TEXT.hash((j + 1) * 16)) for j in range(first, last)]
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}


def segment(start_offset: int, **fields: object) -> dict[str, Any]:
    return {"type": "mm_key", "hash": IMAGE, "start_offset": start_offset, **fields}


def test_text_is_answered_exactly() -> None:
    index = an_index(SGLANG_FULL)
    publish(index, [stored(0, 32), stored(32, 64)], 0)
    assert answer(index) == exactly(1024)
    publish(index, [removed(48, 64)], 0)
    assert answer(index) == exactly(768)


def test_blocks_of_an_image_are_apart_from_those_of_text_and_none_can_be_excluded() -> None:
    """The same placeholders stand for every image."""
    index = an_index(SGLANG_FULL)
    keys = [[], [segment(0)], [segment(16, uuid="u")]]
    publish(index, [stored(0, 16), stored(16, 19, mm_keys=keys)])
    assert answer(index) == exactly(272)
    assert answer(index, extra_keys=[MediaItem(IMAGE, 280, 9)]) == (272, 1024)
    (pod,) = index.pods()
    assert (pod.state, pod.refused) == (PodState.EXACT, {})
    index.reset(POD)
    assert answer(index, extra_keys=[MediaItem(IMAGE, 280, 9)]) == exactly(0)


def test_a_token_that_is_a_text_separates_what_comes_after_it() -> None:
    index = an_index(SGLANG_FULL)
    tokens: list[Any] = list(TEXT.tokens[:64])
    tokens[20] = IMAGE
    publish(index, [stored(0, 4, token_ids=tokens, mm_keys=[[], [segment(0)], [], []])])
    assert answer(index) == exactly(16)


def test_keys_for_no_block_say_nothing() -> None:
    index = an_index(SGLANG_FULL)
    publish(index, [stored(0, 64, mm_keys=[[]] * 64)])
    assert answer(index, extra_keys=[MediaItem(IMAGE, 2000, 9)]) == exactly(1024)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([[]] * 63, id="too few"),
        pytest.param([[{"hash": IMAGE}], *[[]] * 63], id="no offset"),
        pytest.param([[{"start_offset": 0}], *[[]] * 63], id="no hash"),
        pytest.param([[segment(-1)], *[[]] * 63], id="a negative offset"),
        pytest.param([[IMAGE], *[[]] * 63], id="no map"),
    ],
)
def test_keys_that_cannot_be_read_cost_the_store(keys: list[Any]) -> None:
    index = an_index(SGLANG_FULL)
    publish(index, [stored(0, 64, mm_keys=keys)])
    assert answer(index) == (0, 1024)
    assert index.pods()[0].refused == {"bad_extra_keys": 1}


def test_an_adapter_has_a_number_alone() -> None:
    index = an_index(SGLANG_FULL)
    publish(index, [stored(0, 64, lora_id=7)])
    assert (answer(index), answer(index, lora="7")) == (exactly(0), exactly(1024))
    assert answer(index, lora="poet") == (0, 1024)
    assert index.pods()[0].state is PodState.EXACT
