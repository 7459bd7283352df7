"""The mixes of groups that vLLM tests its prefills with, and a cache of 64 groups.

In vLLM's own test states are kept in no mode, which its engine never sets; here they are kept
where steps end, as its engine does. Both managers answer the same, and every group hits.
"""

from typing import Final

import pytest

from tests.vllm.drop_in_pair import Pair, config_of, full, states, tokens, window

BLOCK: Final = 16
KINDS: Final = {
    "full": full(BLOCK),
    "window": window(2 * BLOCK, BLOCK),
    "large": window(4 * BLOCK, BLOCK),
    "states": states(BLOCK),
}
MIXES: Final = (
    "full window",
    "full states",
    "window states",
    "window large",
    "full window window",
    "full states states",
    "full window states",
    "full window large",
    "full full window",
    "full full states",
    "full window full large",
    "full states full states",
    "full large full window",
    "window states large states",
    "full full window states",
)
MANY: Final = " ".join(["full", "window", "states", "large"] * 16)


def pair_of(mix: str, num_blocks_per_group: int) -> Pair:
    kinds = mix.split()
    config = config_of(
        *(KINDS[kind] for kind in kinds),
        num_blocks=num_blocks_per_group * len(kinds),
        retention=None,
    )
    return Pair(config, alignment=BLOCK, unit=BLOCK)


def whole_blocks_first(start: int, end: int) -> int:
    """Return how long a chunk is: schedulers end one where the last whole block ends."""
    last = end // BLOCK * BLOCK
    return (last if start < last else end) - start


def prefill(pair: Pair, prompt: list[int]) -> int | None:
    request = pair.request(prompt)
    pair.both("new_step_starts")
    hit = pair.start(request, whole_blocks_first)
    while hit is not None and request.num_computed_tokens < request.num_tokens:
        pair.both("new_step_starts")
        assert pair.step(request, request.num_tokens - request.num_computed_tokens)
    assert len(pair.ours.get_block_ids(request.request_id)) == pair.ours.num_kv_cache_groups
    pair.compare_blocks()
    pair.finish([request])
    return hit


@pytest.mark.parametrize("mix", [*MIXES, MANY], ids=[*MIXES, "64 groups"])
def test_a_second_prompt_hits_the_blocks_of_the_first_in_every_group(mix: str) -> None:
    pair = pair_of(mix, num_blocks_per_group=10)
    common = tokens(1, 3 * BLOCK)
    assert prefill(pair, common + tokens(2, 7)) == 0
    assert prefill(pair, common + tokens(3, 5)) == 3 * BLOCK
    ours = pair.ours.cache
    ours.debug.check_integrity()
    assert ours.pool.num_free == ours.config.num_blocks - 1


def test_64_groups_evict_each_other_as_in_vllm() -> None:
    pair = pair_of(MANY, num_blocks_per_group=8)
    documents = [tokens(seed, 6 * BLOCK) for seed in range(3)]
    hits = [
        prefill(pair, documents[turn // 2 % 3] + tokens(9 + turn, 5 + turn)) for turn in range(12)
    ]
    assert [bool(hit) for hit in hits] == [False, True] * 6
    pair.ours.cache.debug.check_integrity()
