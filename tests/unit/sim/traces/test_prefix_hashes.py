"""Hashes of prompts: equal exactly where the prefixes are, whatever the sizes of blocks."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.sim.traces.prefix_hashes import PrefixHashes, num_leading, num_shared
from kvbraid.sim.traces.trace import TraceRequest


def chained(prompts: list[list[int]]) -> list[list[int]]:
    """Number every distinct prefix."""
    numbers: dict[tuple[int, ...], int] = {}
    return [
        [numbers.setdefault(tuple(p[: i + 1]), len(numbers)) for i in range(len(p))]
        for p in prompts
    ]


_CONTENT = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(
    contents=st.lists(_CONTENT, min_size=2, max_size=5),
    trace_block=st.sampled_from([16, 64, 512]),
    block=st.sampled_from([16, 48, 80, 544]),
    conversation=st.sampled_from([(0, 0, 0, 0, 0), (0, 1, 2, 3, 4)]),
)
def test_two_blocks_have_one_hash_exactly_if_all_up_to_their_end_is_equal(
    contents: list[list[int]], trace_block: int, block: int, conversation: tuple[int, ...]
) -> None:
    hashes = PrefixHashes(trace_block, block)
    prompts = []
    for number, content, ids in zip(conversation, contents, chained(contents), strict=False):
        tokens = [(value, at) for value in content for at in range(trace_block)]
        found = hashes.of(TraceRequest(number, len(tokens), ids))
        assert len(found) == len(tokens) // block
        prompts.append((tokens, found))
    for (a, of_a), (b, of_b) in combinations(prompts, 2):
        for i, hash_a in enumerate(of_a):
            for j, hash_b in enumerate(of_b):
                equal = a[: (i + 1) * block] == b[: (j + 1) * block]
                assert (hash_a == hash_b) == equal


def test_what_no_block_of_the_model_ends_has_no_hash() -> None:
    assert len(PrefixHashes(64, 48).of(TraceRequest(0, 200, [1, 2]))) == 2


@pytest.mark.parametrize("sizes", [(64, 24), (100, 16), (0, 16)])
def test_blocks_that_no_16_tokens_divide_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidValueError, match="expected a multiple of 16"):
        PrefixHashes(*sizes)


def test_shared_and_known_ids_are_counted_from_the_start() -> None:
    assert num_shared([1, 2, 3], [1, 2, 9, 10]) == 2
    assert num_shared([], [1]) == 0
    assert num_leading([1, 2, 3], {1, 2}.__contains__) == 2


def test_many_conversations_are_forgotten_without_a_trace_in_the_hashes() -> None:
    once, again = PrefixHashes(16, 16), PrefixHashes(16, 16)
    first = once.of(TraceRequest(0, 32, [1, 2]))
    for number in range(1_000):
        again.of(TraceRequest(number, 16, [10 + number]))
    assert again.of(TraceRequest(0, 32, [1, 2])) == first
