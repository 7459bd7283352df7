"""The native `engine_chain`, `engine_chain_keys` and `engine_none_hash` against pickle and CBOR.

Python's own encoders and digests are the model.
"""

from array import array

from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.hashing import (
    EngineHash,
    ExtraKeys,
    HashAlgo,
    Lora,
    MediaItem,
    block_hashes,
    block_keys,
    none_hash,
)

from tests.reference import engine_hash as model

# The serialisations change form at 1, 2, 4 and 5 bytes; so do the tokens.
EDGES = [0, 23, 24, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1]
TOKEN = st.one_of(st.sampled_from(EDGES), st.integers(0, 300), st.integers(0, 200_000))
# Texts of one Latin-1 character are one object, however often they occur; longer ones are not.
TEXT = st.one_of(
    st.sampled_from(["", "a", "é", "€", "mm", "lora", "a" * 255, "a" * 256, "€" * 100]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
ENGINE = st.builds(
    EngineHash,
    algo=st.sampled_from(HashAlgo),
    seed=TEXT,
    block_size=st.integers(1, 40),
    lookahead=st.sampled_from([0, 0, 1, 2, 5]),
)


@st.composite
def media(draw: st.DrawFn) -> tuple[MediaItem, ...]:
    """Items in order that do not overlap; any gap, the shortest and the longest placeholder."""
    items, at = [], 0
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 20))
        length = draw(st.integers(1, 60))
        items.append(MediaItem(draw(TEXT), at, length))
        at += length
    return tuple(items)


EXTRA = st.builds(
    ExtraKeys,
    lora=st.none() | st.builds(Lora, TEXT, TEXT),
    cache_salt=st.none() | TEXT,
    media=media(),
    prompt_embeds=st.none() | st.lists(st.binary(min_size=32, max_size=32), max_size=9).map(tuple),
)


@given(engine=ENGINE, tokens=st.lists(TOKEN, max_size=200), extra=EXTRA)
@example(
    engine=EngineHash(HashAlgo.SHA256, "0", 8, 1),
    tokens=list(range(40)),
    extra=ExtraKeys(media=tuple(MediaItem("a", at, 2) for at in range(0, 40, 2))),
)
def test_the_native_chain_gives_the_engines_bytes(
    engine: EngineHash, tokens: list[int], extra: ExtraKeys
) -> None:
    expected = model.block_hashes(tokens, engine, extra)
    assert block_hashes(tokens, engine, extra) == expected
    assert block_hashes(array("I", tokens), engine, extra) == expected
    keys = [int.from_bytes(digest[-8:], "big") for digest in expected]
    assert block_keys(tokens, engine, extra) == keys


@given(algo=st.sampled_from(HashAlgo), seed=TEXT)
def test_the_seed_hash_is_the_hash_of_the_seed(algo: HashAlgo, seed: str) -> None:
    assert none_hash(algo, seed) == model.digest(algo, seed.encode().decode())


@given(
    algo=st.sampled_from([HashAlgo.SHA256, HashAlgo.XXHASH]),
    num_tokens=st.integers(13_000, 30_000),
    token=st.sampled_from(EDGES),
    salt_len=st.sampled_from([0, 10, 65_400, 65_535, 65_536, 70_000]),
    lookahead=st.sampled_from([0, 3]),
)
def test_a_block_larger_than_a_pickle_frame_is_cut_where_the_interpreter_cuts_it(
    algo: HashAlgo, num_tokens: int, token: int, salt_len: int, lookahead: int
) -> None:
    tokens = array("I", [token] * (num_tokens + lookahead))
    engine = EngineHash(algo, "0", num_tokens, lookahead)
    extra = ExtraKeys(cache_salt="s" * salt_len)
    assert block_hashes(tokens, engine, extra) == model.block_hashes(tokens, engine, extra)


@given(count=st.integers(60, 200))
def test_more_media_in_one_block_than_short_references_can_count(count: int) -> None:
    engine = EngineHash(HashAlgo.SHA256, "0", count)
    extra = ExtraKeys(media=tuple(MediaItem("ax"[at % 2], at, 1) for at in range(count)))
    tokens = [7] * count
    assert block_hashes(tokens, engine, extra) == model.block_hashes(tokens, engine, extra)
