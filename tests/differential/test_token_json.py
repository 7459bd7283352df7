"""The native scan for token ids against a full parse."""

import json
import struct

from hypothesis import given
from hypothesis import strategies as st
from kvbraid._native import find_token_ids

from tests.reference.token_json import token_ids

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PLAIN_TEXT = st.text(st.characters(min_codepoint=32, exclude_characters='"\\'), max_size=4)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=8)
MEMBER = st.tuples(st.sampled_from(["token_ids", "model", "tok"]) | PLAIN_TEXT, TOKENS | JSON)


def read(body: bytes) -> list[int] | None:
    found = find_token_ids(body)
    return None if found is None else [t for (t,) in struct.iter_unpack("<I", found[0])]


@given(members=st.lists(MEMBER, max_size=4), indent=st.none() | st.integers(0, 2))
def test_what_is_found_in_valid_json_is_what_a_full_parse_finds(
    members: list[tuple[str, object]], indent: int | None
) -> None:
    pairs = (f'"{key}": {json.dumps(value, indent=indent)}' for key, value in members)
    body = ("{" + ", ".join(pairs) + "}").encode()
    assert read(body) == token_ids(body)


@given(tokens=TOKENS, data=st.data())
def test_one_changed_byte_is_never_read_as_something_else(
    tokens: list[int], data: st.DataObject
) -> None:
    body = bytearray(json.dumps({"a": "x", "token_ids": tokens, "b": [1]}).encode())
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = find_token_ids(bytes(body))
    if found is not None:
        replaced = bytes(body[: found[1]]) + b"[]" + bytes(body[found[2] :])
        expected = token_ids(bytes(body))
        assert expected == read(bytes(body)) or token_ids(replaced) is None
