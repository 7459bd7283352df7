"""What was there once: whose it is, when it is forgotten, and what is refused."""

import re

import pytest
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet import FleetIndex, IndexOptions, Request
from kvbraid.ids import PodId

A, B = PodId("a"), PodId("b")
TOKENS = tuple(range(64))


def stored(block_size: int) -> bytes:
    num_blocks = 64 // block_size
    return encode_batch(
        [
            BlockStored(
                block_hashes=tuple(range(num_blocks)),
                parent_block_hash=None,
                token_ids=TOKENS[: num_blocks * block_size],
                block_size=block_size,
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        ]
    )


def seen(index: FleetIndex, model: str = "m", *, salt: str | None = None) -> tuple[int, int, int]:
    return index.seen(Request(model=model, token_ids=[*TOKENS, 7], cache_salt=salt))


def test_what_one_model_showed_is_no_other_model_s_and_no_other_salt_s() -> None:
    index = FleetIndex()
    for pod, model in ((A, "m"), (B, "n")):
        index.register(pod, model=model)
    index.apply(A, stored(16))
    index.apply(B, stored(64))
    index.reset(A)
    assert seen(index) == (64, 4, 0)
    index.reset(B)
    assert seen(index, salt="s") == (0, 5, 0)
    assert seen(index, "n") == (64, 5, 0)


def test_blocks_of_a_pod_that_is_gone_are_seen_where_others_end_no_block() -> None:
    index = FleetIndex()
    for pod, block_size in ((A, 16), (B, 48)):
        index.register(pod, model="m")
        index.apply(pod, stored(block_size))
    index.remove(A)
    assert seen(index) == (64, 3, 0)  # The other pod still names the boundary at 48.


def test_a_model_without_pods_is_remembered_but_its_blocks_may_end_anywhere() -> None:
    index = FleetIndex()
    index.register(A, model="m")
    index.apply(A, stored(16))
    index.remove(A)
    with pytest.raises(UnknownError, match='no pod serves model "m"'):
        seen(index)
    index.register(B, model="m")
    assert seen(index) == (0, 4, 1)  # No group is known yet, and so no boundary.
    index.apply(B, stored(32))
    index.reset(B)
    assert seen(index) == (64, 4, 1)


@pytest.mark.parametrize(("memory", "remembered"), [(None, 4), (16 * 256, 4), (16 * 255, 0)])
def test_the_table_is_a_sixteenth_of_all_memory_at_most(
    memory: int | None, remembered: int
) -> None:
    index = FleetIndex(IndexOptions(memory_limit_bytes=memory))
    index.register(A, model="m")
    index.apply(A, stored(16))
    index.reset(A)
    told = seen(index)
    assert told[1:] == (remembered, 4 - remembered)


def test_requests_and_limits_that_cannot_be_are_refused() -> None:
    index = FleetIndex()
    index.register(A, model="m")
    with pytest.raises(UnknownError, match='no pod serves model "n"'):
        seen(index, "n")
    with pytest.raises(InvalidValueError, match=re.escape("-1")):
        index.seen(Request(model="m", token_ids=[1, -1]))
    with pytest.raises(InvalidValueError, match="seen_limit_bytes is -1; expected a whole number"):
        IndexOptions(seen_limit_bytes=-1)
