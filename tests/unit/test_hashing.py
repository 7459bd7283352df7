"""What hashing accepts, what it refuses, and which requests share hashes."""

from array import array
from collections.abc import Sequence
from typing import SupportsIndex, cast

import numpy as np
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.hashing import (
    EngineHash,
    ExtraKeys,
    HashAlgo,
    Lora,
    MediaItem,
    Tokens,
    block_hashes,
    block_keys,
    none_hash,
)

ENGINE = EngineHash(HashAlgo.SHA256, "0", 4)
TOKENS = list(range(100, 114))


def test_only_whole_blocks_are_hashed() -> None:
    assert [len(block_hashes(TOKENS[:n], ENGINE)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_longer_request_keeps_the_hashes_of_its_prefix() -> None:
    assert block_hashes(TOKENS, ENGINE)[:2] == block_hashes(TOKENS[:9], ENGINE)


def test_a_hash_with_lookahead_waits_for_the_tokens_after_its_block() -> None:
    engine = EngineHash(HashAlgo.SHA256, "0", 4, lookahead=2)
    assert [len(block_hashes(TOKENS[:n], engine)) for n in (1, 4, 5, 6, 9, 10)] == [
        0,
        0,
        0,
        1,
        1,
        2,
    ]
    changed = [*TOKENS[:5], 7, *TOKENS[6:]]
    assert block_hashes(changed, engine)[0] != block_hashes(TOKENS, engine)[0]


@pytest.mark.parametrize(
    ("extra", "first_block_that_differs"),
    [
        (ExtraKeys(cache_salt=""), None),
        (ExtraKeys(media=(MediaItem("m", 40, 9),)), None),
        (ExtraKeys(lora=Lora("a", "/a")), 0),
        (ExtraKeys(cache_salt="s"), 0),
        (ExtraKeys(media=(MediaItem("m", 7, 2),)), 1),
        (ExtraKeys(prompt_embeds=()), 0),
    ],
)
def test_extra_keys_separate_requests_from_the_block_they_enter(
    extra: ExtraKeys, first_block_that_differs: int | None
) -> None:
    plain, other = block_hashes(TOKENS, ENGINE), block_hashes(TOKENS, ENGINE, extra)
    differing = [index for index in range(3) if plain[index] != other[index]]
    expected = [] if first_block_that_differs is None else range(first_block_that_differs, 3)
    assert differing == list(expected)


@pytest.mark.parametrize(
    "tokens",
    [
        array("I", TOKENS),
        np.array(TOKENS, dtype=np.uint32),
        memoryview(array("I", TOKENS).tobytes()).cast("I"),
        tuple(TOKENS),
        range(100, 114),
        [np.int64(token) for token in TOKENS],
    ],
    ids=["array", "numpy", "memoryview", "tuple", "range", "numpy scalars"],
)
def test_any_carrier_of_the_same_tokens_gives_the_same_hashes(tokens: Tokens) -> None:
    assert block_hashes(tokens, ENGINE) == block_hashes(TOKENS, ENGINE)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2, -5], "token id 2 is -5; expected an integer from 0 to 4294967295"),
        ([1, -1], "token id 1 is -1"),
        ([2**32], "token id 0 is 4294967296"),
        ([2**80], "token id 0 is 1208925819614629174706176"),
        ([0, 1.5], r"token id 1 is 1\.5"),
        ("ab", "token id 0 is 'a'"),
        (7, "token ids are a int; expected a buffer of uint32 or a sequence"),
        ({1: 2}, "token ids are a dict"),
        (b"abcd", "1-byte items of format 'B'; expected uint32"),
        (array("i", [1]), "4-byte items of format 'i'"),
        (np.array([1], dtype=np.int64), "8-byte items of format 'l'"),
        (np.array([1], dtype=">u4"), "format '>I'"),
        (np.zeros((2, 2), dtype=np.uint32), r"shape \[2, 2\]"),
        (np.zeros(8, dtype=np.uint32)[::2], r"strides \[8\] bytes"),
        (np.frombuffer(bytes(9), np.uint8)[1:].view(np.uint32), "at an odd address"),
    ],
)
def test_what_is_no_token_is_refused_with_its_place(tokens: object, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        block_hashes(cast("Tokens", tokens), ENGINE)


class _Shrinks:
    """An integer that empties the list it is in while it is read."""

    def __init__(self, home: list[SupportsIndex]) -> None:
        self.home = home

    def __index__(self) -> int:
        self.home.clear()
        return 1


def test_a_list_that_shrinks_while_it_is_read_is_refused() -> None:
    tokens: list[SupportsIndex] = [1, 2]
    tokens += [_Shrinks(tokens), *range(1000, 1100)]
    with pytest.raises(InvalidValueError, match="had 103 items and has no item 3 any more"):
        block_hashes(cast("Sequence[int]", tokens), ENGINE)


def test_a_random_seed_is_not_guessed() -> None:
    assert none_hash(HashAlgo.XXHASH, None) is None
    with pytest.raises(InvalidValueError, match="set the engine's PYTHONHASHSEED"):
        block_keys(TOKENS, EngineHash(HashAlgo.XXHASH))


def test_media_out_of_order_is_refused() -> None:
    extra = ExtraKeys(media=(MediaItem("b", 9, 1), MediaItem("a", 8, 1)))
    with pytest.raises(InvalidValueError, match="item 1 has offset 8, the one before it 9; sort"):
        block_hashes(TOKENS, ENGINE, extra)


def test_an_embeddings_digest_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="digest 1 has 3 bytes; expected the 32"):
        block_hashes(TOKENS, ENGINE, ExtraKeys(prompt_embeds=(bytes(32), b"abc")))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 0), "block_size is 0"), ((4, -1), "lookahead is -1"), ((2**32, 0), "block_size is")],
)
def test_sizes_that_no_engine_has_are_refused(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        EngineHash(HashAlgo.SHA256, "0", *sizes)
