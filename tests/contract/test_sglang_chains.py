"""What separates SGLang's caches although no event tells it: extra keys, loads of an adapter."""

from hashlib import sha256
from typing import Any

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodState
from kvbraid.spec import EngineDialect

from tests.contract.prompts import TEXT, Text, an_index, answer, exactly
from tests.contract.wires import SGLANG, SGLANG_FULL, page, publish, signed

OTHER_TEXT = Text(seed=1)
KEYED = EngineProfile(dialect=EngineDialect.SGLANG, extra_keys=True)
RELOADING = EngineProfile(dialect=EngineDialect.SGLANG, adapter_reloads=True)
BOTH = ["gpu", "cpu"]
CLEARED = ["AllBlocksCleared"]


def pages(
    text: Text, start: int, stop: int, medium: str = "GPU", **fields: object
) -> dict[str, Any]:
    """A store of some pages, as 0.5.23 writes it."""
    names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    _, *values = page(text, start, stop, medium)
    return {"type": "BlockStored", **dict(zip(names, values, strict=False)), **fields}


def removed(text: Text, start: int, stop: int, medium: str = "GPU") -> list[Any]:
    return ["BlockRemoved", [signed(text.hash((j + 1) * 16)) for j in range(start, stop)], medium]


def an_sglang(engine: EngineProfile = SGLANG) -> FleetIndex:
    return an_index(SGLANG_FULL, engine=engine)


# --- extra keys: one hash for several caches ---------------------------------------------------


def test_a_hash_stored_twice_bounds_what_comes_from_there_on_and_nothing_else() -> None:
    index = an_sglang()
    publish(index, [pages(TEXT, 0, 64), pages(OTHER_TEXT, 0, 64), pages(TEXT, 32, 33)])
    assert answer(index) == (512, 1024)
    assert answer(index, TEXT.prompt[:500]) == exactly(496)
    assert answer(index, OTHER_TEXT.prompt) == exactly(1024)
    (pod,) = index.pods()
    assert (pod.state, pod.reason, pod.refused) == (PodState.EXACT, "", {"stored_twice": 1})


def test_one_of_two_copies_leaves_a_bound_and_the_last_one_nothing() -> None:
    index = an_sglang()
    publish(index, [pages(TEXT, 0, 64), pages(TEXT, 0, 64), removed(TEXT, 0, 64)])
    assert answer(index) == (0, 1024)
    publish(index, [removed(TEXT, 0, 64)])
    assert answer(index) == exactly(0)
    publish(index, [CLEARED, pages(TEXT, 0, 64)])
    assert answer(index) == exactly(1024)


def test_a_hash_stored_again_after_its_removal_shows_no_extra_keys() -> None:
    index = an_sglang()
    publish(index, [pages(TEXT, 0, 64), removed(TEXT, 0, 64), pages(TEXT, 0, 64)])
    assert answer(index) == exactly(1024)


def test_a_hash_without_a_place_that_is_stored_twice_bounds_all_answers() -> None:
    """It may stand anywhere."""
    index = an_sglang()
    publish(index, [pages(OTHER_TEXT, 0, 64), pages(TEXT, 32, 64), pages(TEXT, 32, 64)])
    assert answer(index, OTHER_TEXT.prompt) == (0, 1024)
    publish(index, [pages(TEXT, 0, 32)])
    assert answer(index) == (0, 1024)


def test_a_pod_with_extra_keys_promises_nothing_and_excludes_what_no_key_holds() -> None:
    index = an_sglang(KEYED)
    publish(index, [pages(TEXT, 0, 64)])
    assert answer(index) == (0, 1024)
    assert answer(index, OTHER_TEXT.prompt) == exactly(0)
    publish(index, [pages(TEXT, 0, 64), removed(TEXT, 0, 64)])
    assert answer(index) == (0, 1024)
    assert index.pods()[0].refused == {}


def test_host_copies_of_several_keys_are_removed_one_by_one() -> None:
    host = "CPU_PINNED"
    index = an_sglang(KEYED)
    publish(
        index, [pages(TEXT, 0, 64, host), pages(TEXT, 0, 64, host), removed(TEXT, 0, 64, host)]
    )
    assert answer(index, tiers=BOTH) == (0, 1024)
    publish(index, [removed(TEXT, 0, 64, host)])
    assert answer(index, tiers=BOTH) == exactly(0)


# --- adapters: another hash for each load --------------------------------------------------------


def load(number: int, seed: int = 0) -> Text:
    """A prompt under one load of an adapter: the tokens stay, the hashes do not."""
    return Text(seed=seed, engine=f"load {number}")


def poet(index: FleetIndex, text: Text = TEXT) -> tuple[int, int]:
    return answer(index, text.prompt, lora="poet")


def stored(text: Text, stop: int = 64, medium: str = "GPU") -> dict[str, Any]:
    return pages(text, 0, stop, medium, lora_name="poet")


def test_what_the_newest_load_stored_is_certain_and_what_earlier_ones_left_is_a_bound() -> None:
    index = an_sglang()
    publish(index, [stored(load(1)), stored(load(1, seed=1)), pages(TEXT, 0, 64)])
    assert (poet(index), poet(index, OTHER_TEXT)) == (exactly(1024), exactly(1024))
    publish(index, [stored(load(2), 32)])
    assert (poet(index), poet(index, OTHER_TEXT)) == ((512, 1024), (0, 1024))
    assert answer(index) == exactly(1024)
    assert answer(index, lora="other") == exactly(0)
    assert index.pods()[0].refused == {"adapter_loaded_again": 1}
    publish(index, [pages(load(2), 32, 64, lora_name="poet")])
    assert poet(index) == exactly(1024)


def test_what_the_newest_load_no_longer_holds_is_not_certain() -> None:
    index = an_sglang()
    publish(index, [stored(load(1)), stored(load(2)), removed(load(2), 32, 64)])
    assert poet(index) == (512, 1024)
    publish(index, [removed(load(1), 32, 64)])
    assert poet(index) == exactly(512)


def test_a_third_load_ends_what_the_second_one_had_certain() -> None:
    index = an_sglang()
    publish(index, [stored(load(1)), stored(load(2)), stored(load(2, seed=1))])
    assert (poet(index), poet(index, OTHER_TEXT)) == (exactly(1024), exactly(1024))
    publish(index, [stored(load(3))])
    assert (poet(index), poet(index, OTHER_TEXT)) == (exactly(1024), (0, 1024))


def test_a_clear_ends_what_earlier_loads_left() -> None:
    index = an_sglang()
    publish(index, [stored(load(1)), stored(load(2)), CLEARED, stored(load(2, seed=1))])
    assert (poet(index), poet(index, OTHER_TEXT)) == (exactly(0), exactly(1024))


def test_hashes_that_take_turns_leave_bounds_until_a_restart() -> None:
    """Two loads in use at once, or extra keys beside an adapter."""
    index = an_sglang()
    for number in (1, 2, 1):
        publish(index, [stored(load(number)), removed(load(number), 0, 64)])
    publish(index, [CLEARED, stored(load(1)), stored(load(3, seed=1))])
    assert (poet(index), poet(index, OTHER_TEXT)) == ((0, 1024), (0, 1024))


def test_a_host_copy_of_an_earlier_load_shows_nothing() -> None:
    """What an earlier load left is written to the host when its memory is needed."""
    index = an_sglang()
    old = stored(load(1), medium="CPU_PINNED")
    publish(index, [stored(load(1)), stored(load(2)), old, removed(load(1), 0, 64)])
    assert (poet(index), answer(index, lora="poet", tiers=BOTH)) == (exactly(1024), exactly(1024))
    publish(index, [removed(load(2), 0, 64)])
    assert (poet(index), answer(index, lora="poet", tiers=BOTH)) == (exactly(0), (0, 1024))


def test_a_pod_that_loads_adapters_again_promises_nothing_for_them() -> None:
    index = an_sglang(RELOADING)
    publish(index, [stored(load(1)), pages(TEXT, 0, 64)])
    assert (poet(index), answer(index)) == ((0, 1024), exactly(1024))
    assert poet(index, OTHER_TEXT) == exactly(0)


# --- the dynamo format: hashes that cover extra keys and salts -----------------------------------

DYNAMO = EngineProfile(dialect=EngineDialect.SGLANG, event_format="dynamo")


def rooted(tokens: tuple[int, ...]) -> dict[str, Any]:
    """A store of one page as an engine without an extra key hashes it."""
    plain = sha256(b"".join(token.to_bytes(4, "little") for token in tokens)).digest()
    page = pages(TEXT, 0, 1)
    return {
        **page,
        "block_hashes": [signed(int.from_bytes(plain[:8], "big"))],
        "token_ids": tokens,
    }


def test_nothing_is_promised_or_excluded_before_the_engine_has_shown_how_it_hashes() -> None:
    index = an_sglang(DYNAMO)
    publish(index, [pages(TEXT, 0, 64)])
    assert answer(index) == (0, 1024)
    publish(index, [rooted(OTHER_TEXT.tokens[:16])])
    assert answer(index) == exactly(0)
    assert answer(index, OTHER_TEXT.prompt) == exactly(16)
    assert answer(index, OTHER_TEXT.prompt, extra_key="k") == exactly(0)


def test_a_first_hash_that_cannot_be_computed_leaves_everything_open() -> None:
    """Media stand-ins and media items are hashed otherwise."""
    index = an_sglang(DYNAMO)
    publish(index, [rooted(TEXT.tokens[:16])])
    wide = [1 << 40, *TEXT.prompt[1:]]
    assert answer(index, wide) == (0, 1024)
    assert answer(index, TEXT.prompt[:15]) == exactly(0)
    assert answer(index, extra_keys=[MediaItem("i", 20, 4)]) == (0, 1024)


def test_a_request_with_an_extra_key_is_promised_nothing_where_hashes_do_not_show_it() -> None:
    index = an_sglang()
    publish(index, [pages(TEXT, 0, 64)])
    assert (answer(index, extra_key="k"), answer(index)) == ((0, 1024), exactly(1024))


def test_adapters_stand_under_the_salt_that_is_told() -> None:
    index = an_sglang(DYNAMO)
    publish(index, [stored(load(1), 32), pages(TEXT, 0, 64, lora_name="poet", cache_salt="s")])
    assert poet(index) == exactly(512)
    assert answer(index, lora="poet", cache_salt="s") == exactly(1024)
    assert answer(index, lora="poet", extra_key="k") == (0, 512)


@pytest.mark.parametrize("tokens", [(), TEXT.tokens[:8], TEXT.tokens[:20]])
def test_a_root_store_without_a_whole_page_shows_nothing(tokens: tuple[int, ...]) -> None:
    index = an_sglang(DYNAMO)
    publish(index, [{**pages(TEXT, 0, 1), "token_ids": tokens}])
    assert answer(index) == (0, 1024)
    assert index.pods()[0].state is PodState.EXACT
