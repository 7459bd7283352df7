"""What the event classes refuse."""

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import BlockRemoved, BlockStored

GOOD = {"block_hashes": (1,), "parent_block_hash": None, "token_ids": (1, 2), "block_size": 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_hashes", (2**64,)),
        ("block_hashes", (-1,)),
        ("parent_block_hash", -1),
        ("token_ids", (2**64,)),
        ("block_size", -1),
        ("group_idx", -1),
        ("kv_cache_spec_sliding_window", -1),
        ("lookahead_token_ids", ((-1,),)),
    ],
)
def test_a_value_that_the_wire_cannot_carry_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidValueError, match=f"{field} holds -?\\d+; the wire carries 0 to"):
        BlockStored(**{**GOOD, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["extra_keys", "lookahead_token_ids"])
def test_lists_per_block_need_one_entry_per_listed_block(field: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{field} has 2 entries for 1 block hashes"):
        BlockStored(**{**GOOD, field: ((), ())})  # type: ignore[arg-type]


def test_a_remove_refuses_a_group_below_zero() -> None:
    with pytest.raises(InvalidValueError, match="group_idx holds -1"):
        BlockRemoved(block_hashes=(1,), group_idx=-1)
