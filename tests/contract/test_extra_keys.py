"""What separates caches of equal tokens: LoRA adapters, salts, media, embeddings, lookahead.

Each case publishes as an engine does and asks as a client does; the keys of both must be equal.
"""

from typing import Any

import pytest
from kvbraid.events import BlockStored, WireForm
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    POD,
    TEXT,
    WINDOW,
    Group,
    Text,
    an_index,
    answer,
    exactly,
    tell,
)

LONG_ID = "0123456789abcdef" * 4


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("in_extra_keys", [False, True])
def test_a_lora_adapter_has_a_cache_of_its_own(form: WireForm, *, in_extra_keys: bool) -> None:
    keys = ((),) * 64 if in_extra_keys else None  # The encoder repeats the name in each.
    index = an_index()
    tell(index, TEXT.stored(lora_name="sql", lora_id=1, extra_keys=keys), form=form)
    assert answer(index, lora="sql") == exactly(1024)
    assert answer(index, lora="other") == exactly(0)
    assert answer(index) == exactly(0)


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_lora_adapter_of_a_hybrid_is_joined_group_by_group(form: WireForm) -> None:
    index = an_index()
    tell(
        index,
        TEXT.stored(WINDOW, keep=range(56, 64), lora_name="sql", extra_keys=((),) * 8),
        TEXT.stored(lora_name="sql", extra_keys=((),) * 64),
        form=form,
    )
    assert answer(index, lora="sql") == exactly(1024)
    assert answer(index) == exactly(0)


def test_an_adapter_known_by_number_only_is_found_by_its_number() -> None:
    index = an_index()
    tell(index, TEXT.stored(lora_id=3), form="array")
    assert answer(index) == exactly(0)
    assert (answer(index, lora="3"), answer(index, lora="4")) == (exactly(1024), exactly(0))
    assert answer(index, lora="sql") == (0, 1024), "which adapter it was is not on the wire"
    assert index.pods()[0].refused == {"lora_without_name": 1}
    index.reset(POD)
    assert answer(index, lora="sql") == exactly(0)


def with_salt(salt: str, **fields: Any) -> BlockStored:  # noqa: ANN401 - fields of the event
    return TEXT.stored(extra_keys=((salt,), *(None,) * 63), **fields)


WINDOW_128 = {"kv_cache_spec_sliding_window": 128}


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_salt_separates_caches(form: WireForm) -> None:
    index = an_index()
    tell(index, with_salt("s"), form=form)
    assert answer(index) == exactly(0)
    assert answer(index, cache_salt="s") == exactly(1024)
    assert answer(index, cache_salt="t") == exactly(0)


@pytest.mark.parametrize("form", ["map", "array"])
def test_blocks_after_the_first_inherit_its_salt(form: WireForm) -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(1), extra_keys=(("s",),)), form=form)
    tell(index, TEXT.stored(FULL, range(1, 64)), form=form)
    assert answer(index, cache_salt="s") == exactly(1024)
    assert answer(index) == exactly(0)


def test_a_salt_that_no_event_showed_is_any_salt() -> None:
    """A window's tail is listed without the first block, which alone tells the salt."""
    alone = Group(kind="sliding_window", window=128)
    index = an_index()
    tell(index, TEXT.stored(alone, keep=range(56, 64)))
    assert answer(index) == (0, 1024)
    assert answer(index, cache_salt="s") == (0, 1024)
    tell(index, with_salt("s", kv_cache_spec_kind="sliding_window", **WINDOW_128))
    assert answer(index) == exactly(0)
    assert answer(index, cache_salt="s") == exactly(1024)


def test_a_salt_and_an_adapter_together() -> None:
    index = an_index()
    tell(index, with_salt("s", lora_name="sql"))
    assert answer(index, lora="sql", cache_salt="s") == exactly(1024)
    assert answer(index, lora="sql") == exactly(0)
    assert answer(index, cache_salt="s") == exactly(0)


def media_keys(
    *items: MediaItem, num_blocks: int = 64, block: int = 16
) -> tuple[tuple[tuple[str, int], ...] | None, ...]:
    """Per block, as vLLM lists them: items that overlap it, with offsets from its start."""

    def keys(start: int) -> tuple[tuple[str, int], ...] | None:
        found = tuple(
            (item.identifier, item.offset - start)
            for item in items
            if item.offset < start + block and item.offset + item.length > start
        )
        return found or None

    return tuple(keys(j * block) for j in range(num_blocks))


def media(identifier: str, offset: int, length: int) -> MediaItem:
    return MediaItem(identifier=identifier, offset=offset, length=length)


CAT = media("cat", 5, 10)
DOG = media(LONG_ID, 100, 200)


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize(
    ("items", "text_reuses"),
    [
        pytest.param([CAT], 0, id="within the first block"),
        pytest.param([DOG], 96, id="spans many blocks, id of 64 digits"),
        pytest.param([CAT, DOG], 0, id="two items"),
        pytest.param([media("x", 48, 16)], 48, id="exactly one block"),
        pytest.param([media("x", 63, 2)], 48, id="across one boundary"),
        pytest.param([media("x", 32, 4), media("y", 40, 4)], 32, id="two in one block"),
    ],
)
def test_media_are_told_from_text_and_from_each_other(
    items: list[MediaItem], text_reuses: int, form: WireForm
) -> None:
    index = an_index()
    tell(index, TEXT.stored(extra_keys=media_keys(*items)), form=form)
    others = [item._replace(identifier=item.identifier + "!") for item in items]
    moved = [item._replace(offset=item.offset + 1) for item in items]
    assert answer(index, extra_keys=items) == exactly(1024)
    assert answer(index) == exactly(text_reuses)
    assert answer(index, extra_keys=others) == exactly(text_reuses)
    assert answer(index, extra_keys=moved) == exactly(text_reuses)


def test_a_text_is_not_found_in_a_medium_nor_the_other_way_round() -> None:
    index = an_index()
    tell(index, TEXT.stored())
    assert answer(index) == exactly(1024)
    assert answer(index, extra_keys=[CAT]) == exactly(0)
    assert answer(index, extra_keys=[DOG]) == exactly(96)


def test_media_in_a_later_store_and_in_blocks_of_other_sizes() -> None:
    index = an_index()
    keys = media_keys(DOG)
    tell(index, TEXT.stored(FULL, range(10), extra_keys=keys[:10]))
    tell(index, TEXT.stored(FULL, range(10, 64), extra_keys=keys[10:]))
    assert answer(index, extra_keys=[DOG]) == exactly(1024)
    assert answer(index) == exactly(96)


def test_media_are_the_same_in_groups_of_unequal_blocks() -> None:
    large = Group(idx=1, block=64)
    index = an_index()
    tell(index, TEXT.stored(large, extra_keys=media_keys(DOG, num_blocks=16, block=64)))
    tell(index, TEXT.stored(extra_keys=media_keys(DOG)))
    assert answer(index, extra_keys=[DOG]) == exactly(1024)
    assert answer(index) == exactly(64)


def test_media_and_salt_in_one_block() -> None:
    index = an_index()
    keys = list(media_keys(CAT))
    keys[0] = (("cat", 5), "s")  # type: ignore[assignment]
    tell(index, TEXT.stored(extra_keys=tuple(keys)))
    assert answer(index, extra_keys=[CAT], cache_salt="s") == exactly(1024)
    assert answer(index, extra_keys=[CAT]) == exactly(0)
    assert answer(index, cache_salt="s") == exactly(0)


def test_media_of_a_hybrid_are_joined_group_by_group() -> None:
    index = an_index()
    keys = media_keys(DOG)
    tell(
        index,
        TEXT.stored(WINDOW, keep=range(56, 64), extra_keys=keys[56:]),
        TEXT.stored(extra_keys=keys),
    )
    assert answer(index, extra_keys=[DOG]) == exactly(1024)
    assert answer(index) == exactly(0)


def test_media_identifiers_without_offsets_are_a_bound() -> None:
    """Older engines: the place of the item within its first block is not on the wire."""
    keys = tuple(("old",) if 6 <= j <= 18 else None for j in range(64))
    index = an_index()
    tell(index, TEXT.stored(extra_keys=keys), form="array")
    item = media("old", 100, 200)
    lower, upper = answer(index, extra_keys=[item])
    assert lower <= 1024 <= upper
    lower, upper = answer(index)
    assert lower <= 96 <= upper


def test_embeddings_instead_of_tokens_are_never_found_by_tokens() -> None:
    index = an_index()
    tell(index, TEXT.stored(extra_keys=(*(None,) * 32, *((b"\x01" * 32,),) * 32)))
    assert answer(index) == exactly(512)


# --- hash lookahead ---------------------------------------------------------------------------

AHEAD = 2
WITH_AHEAD = Topology(
    groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),), hash_lookahead=AHEAD
)


def with_lookahead(
    text: Text,
    num_blocks: int,
    **fields: Any,  # noqa: ANN401 - fields of the event, as they are
) -> BlockStored:
    """Blocks of a text whose hashes also cover the two tokens after each."""
    ends = [(j + 1) * 16 for j in range(num_blocks)]
    ahead = tuple(text.tokens[end : end + AHEAD] for end in ends)
    return text.stored(FULL, range(num_blocks), lookahead_token_ids=ahead, **fields)


@pytest.mark.parametrize("topology", [WITH_AHEAD, None], ids=["configured", "learned"])
def test_lookahead_tokens_belong_to_the_block(topology: Topology | None) -> None:
    index = an_index(topology)
    tell(index, with_lookahead(TEXT, 63))
    assert answer(index) == exactly(1008)
    forked = (*TEXT.tokens[:513], 9, *TEXT.tokens[514:])
    assert answer(index, forked) == exactly(496), "the block before the fork sees one token of it"
    assert answer(index, TEXT.tokens[:514]) == exactly(512)
    assert answer(index, TEXT.tokens[:513]) == exactly(496), "the hash needs two tokens after it"


def test_a_configured_lookahead_without_one_on_the_wire_is_not_a_hit() -> None:
    index = an_index(WITH_AHEAD)
    tell(index, TEXT.stored())
    lower, _ = answer(index)
    assert lower == 0


def test_media_in_the_lookahead_belong_to_the_block_before_them_as_well() -> None:
    item = media("x", 513, 40)  # Block 31 ends at 512 and sees the item's first token.
    keys = list(media_keys(item))
    keys[31] = (("x", 17),)
    index = an_index(WITH_AHEAD)
    tell(index, with_lookahead(TEXT, 63, extra_keys=tuple(keys[:63])))
    assert answer(index, extra_keys=[item]) == exactly(1008)
    assert answer(index) == exactly(496)
    assert answer(index, extra_keys=[media("x", 514, 40)]) == exactly(496)


def test_lookaheads_of_two_lengths_contradict_each_other() -> None:
    index = an_index()
    tell(index, with_lookahead(TEXT, 8))
    other = Text(seed=1)
    tell(index, other.stored(FULL, range(1), lookahead_token_ids=(other.tokens[16:20],)))
    (pod,) = index.pods()
    assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_lookahead")
    assert answer(index) == (0, 1024)
