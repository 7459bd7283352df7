"""Token ids that 32 bits cannot hold: stand-ins of media, as numbers or texts.

Two of them that differ anywhere are two tokens, in spans, in pairs and after a block's end; the
pages before them are not lost.
"""

from array import array
from collections.abc import Sequence

import pytest
from kvbraid import FleetIndex, PodId, Request, topology_from_mapping
from kvbraid.events import BlockStored, TokenId, encode_batch
from kvbraid.hashing import MediaItem

POD = PodId("a")
PAGE = 4
TEXT = tuple(range(100, 108))
IMAGE = 1_000_000 + (1 << 61)


def index_of(*events: BlockStored, lookahead: int = 0) -> FleetIndex:
    group = {"kind": "full_attention", "block_size": PAGE}
    mapping = {"dialect": "pure", "groups": [group], "alignment": PAGE}
    index = FleetIndex()
    topology = topology_from_mapping({**mapping, "hash_lookahead": lookahead})
    index.register(POD, model="m", topology=topology)
    index.apply(POD, encode_batch(events))
    assert index.pods()[0].refused == {}
    index.check_integrity()
    return index


def stored(tokens: Sequence[TokenId], *, first: int = 1, parent: int | None = None) -> BlockStored:
    num_blocks = len(tokens) // PAGE
    return BlockStored(
        block_hashes=tuple(range(first, first + num_blocks)),
        parent_block_hash=parent,
        token_ids=tuple(tokens),
        block_size=PAGE,
    )


def answer(index: FleetIndex, tokens: Sequence[int] | memoryview, *media: MediaItem) -> int:
    request = Request(model="m", token_ids=tokens, extra_keys=media or None)
    (row,) = index.score(request).rows
    assert row.exactness == "exact"
    return row.lower


def test_a_store_with_wide_tokens_keeps_its_pages_of_text() -> None:
    index = index_of(stored((*TEXT, *[IMAGE] * 8)))
    assert answer(index, (*TEXT, 9)) == 8
    assert answer(index, (*TEXT, *[IMAGE] * 8, 9)) == 16


@pytest.mark.parametrize("other", [IMAGE ^ 1, IMAGE ^ 1 << 32, IMAGE ^ 1 << 63, IMAGE % 2**32, 0])
@pytest.mark.parametrize("at", range(8))
def test_a_wide_token_that_differs_in_any_bit_is_another_token(at: int, other: int) -> None:
    page = [7, IMAGE, 8, IMAGE, IMAGE, 1 << 32, 9, IMAGE]
    index = index_of(stored((*TEXT, *page)))
    changed = [*page]
    changed[at] = other if page[at] == IMAGE else page[at] ^ 1 << 32
    assert answer(index, (*TEXT, *page, 9)) == 16
    assert answer(index, (*TEXT, *changed, 9)) == 8 + at // PAGE * PAGE


def test_numbers_equal_modulo_the_prime_of_the_keys_are_two_tokens() -> None:
    prime = 2**61 - 1
    for token in (0, 5, 2**32 - 1):
        index = index_of(stored((token, 1, 2, 3)))
        for turns in range(1, 8):
            assert answer(index, (token + turns * prime, 1, 2, 3, 9)) == 0


def test_the_upper_half_at_one_place_does_not_stand_for_another_place() -> None:
    index = index_of(stored((1 << 32, 0, 0, 0)))
    assert answer(index, (1 << 32, 0, 0, 0, 9)) == 4
    others = ((0, 1 << 32, 0, 0), (0, 0, 0, 1 << 32), (0, 0, 0, 0), (2 << 32, 0, 0, 0))
    for tokens in (*others, (1, 0, 0, 0)):
        assert answer(index, (*tokens, 9)) == 0


def test_later_stores_follow_wide_tokens_in_any_order_of_arrival() -> None:
    image = [IMAGE + n for n in range(4)]
    index = index_of(
        stored((*image, *TEXT[:4]), first=11, parent=2), stored((*TEXT[:4], *image), first=1)
    )
    whole = (*TEXT[:4], *image, *image, *TEXT[:4])
    assert answer(index, (*whole, 9)) == 16
    assert answer(index, (*TEXT[:4], *image, *[t + (1 << 40) for t in image], 9)) == 8


def test_sparse_stores_with_wide_tokens_are_placed_by_their_join() -> None:
    tokens = (*TEXT[:4], *[IMAGE] * 4, *TEXT[:4])
    window = {"kind": "sliding_window", "block_size": PAGE, "window": 5}
    groups = [{"kind": "full_attention", "block_size": PAGE}, window]
    index = FleetIndex()
    topology = topology_from_mapping({"dialect": "pure", "groups": groups, "alignment": PAGE})
    index.register(POD, model="m", topology=topology)
    span = {"parent_block_hash": None, "token_ids": tokens, "block_size": PAGE}
    full = BlockStored(block_hashes=(1, 2, 3), group_idx=0, **span)  # type: ignore[arg-type]
    tail = BlockStored(block_hashes=(3,), group_idx=1, **span)  # type: ignore[arg-type]
    index.apply(POD, encode_batch([tail]))
    index.apply(POD, encode_batch([full]))
    index.check_integrity()
    assert answer(index, (*tokens, 9)) == 12


def pairs(tokens: Sequence[TokenId], following: TokenId) -> BlockStored:
    """As an engine with EAGLE says it: each block's hash covers the token after it too."""
    event = stored(tokens)
    ends = [*tokens[PAGE::PAGE], following]
    fields = {name: getattr(event, name) for name in type(event).__dataclass_fields__}
    return BlockStored(**{**fields, "lookahead_token_ids": tuple((end,) for end in ends)})


def test_a_wide_token_after_a_block_is_part_of_what_the_block_is() -> None:
    index = index_of(pairs((*TEXT, *TEXT), IMAGE), lookahead=1)
    assert answer(index, (*TEXT, *TEXT, IMAGE)) == 16
    for other in (IMAGE ^ 1 << 40, IMAGE % 2**32, 0):
        assert answer(index, (*TEXT, *TEXT, other)) == 12


def test_a_wide_token_before_a_block_s_end_is_not_one_after_it() -> None:
    low = IMAGE % 2**32
    index = index_of(pairs((*TEXT[:7], IMAGE), low), lookahead=1)
    assert answer(index, (*TEXT[:7], IMAGE, low, 9)) == 8
    assert answer(index, (*TEXT[:7], low, IMAGE, 9)) < 8


def test_an_image_before_a_block_s_end_is_not_one_after_it() -> None:
    event = pairs(TEXT, 5)
    fields = {name: getattr(event, name) for name in type(event).__dataclass_fields__}
    keys = (None, (("image", 3),))
    index = index_of(BlockStored(**{**fields, "extra_keys": keys}), lookahead=1)
    before, after = (MediaItem(identifier="image", offset=n, length=1) for n in (7, 8))
    assert answer(index, (*TEXT, 5), before) == 8
    assert answer(index, (*TEXT, 5), after) < 8


def test_a_token_that_is_a_text_is_no_number() -> None:
    index = index_of(stored((*TEXT, 1, 2, 3, "5")))
    assert answer(index, (*TEXT, 1, 2, 3, 5, 9)) == 8
    assert answer(index, (*TEXT, 1, 2, 3, 0, 9)) == 8


@pytest.mark.parametrize("carrier", [list, tuple, lambda tokens: memoryview(array("Q", tokens))])
def test_any_carrier_of_wide_tokens_is_read(carrier: type[list[int]]) -> None:
    index = index_of(stored((IMAGE, 2**64 - 1, 0, 2**32 - 1)))
    assert answer(index, carrier([IMAGE, 2**64 - 1, 0, 2**32 - 1, 9])) == 4
    assert answer(index, carrier([IMAGE, 2**64 - 2, 0, 2**32 - 1, 9])) == 0
