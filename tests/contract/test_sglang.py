"""What SGLang's events mean where they mean something else than vLLM's."""

from typing import Any

import pytest
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import TEXT, an_index, answer, exactly
from tests.contract.wires import (
    CLEARED,
    SGLANG,
    SGLANG_FULL,
    SGLANG_HYBRID,
    bigrams,
    page,
    publish,
    signed,
)

BOTH = ["gpu", "cpu"]
ALL = ["gpu", "cpu", "storage"]


def removed(blocks: range, medium: str) -> list[Any]:
    return ["BlockRemoved", [signed(TEXT.hash((j + 1) * 16)) for j in blocks], medium]


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1026, 1040])
def test_pairs_are_looked_up_of_the_tokens_before_the_last_one(length: int) -> None:
    """`n` tokens leave n - 1 for a look-up, which are n - 2 pairs."""
    index = an_index(SGLANG_FULL, engine=SGLANG)
    publish(index, [bigrams(TEXT, 0, 64)])
    prompt = [*TEXT.prompt, *range(15)]
    assert answer(index, prompt[:length]) == exactly((length - 2) // 16 * 16)


def test_a_flush_empties_the_host_too() -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    publish(index, [page(TEXT, 0, 64, "GPU"), page(TEXT, 0, 64, "CPU_PINNED")])
    publish(index, [removed(range(64), "GPU")])
    assert answer(index, tiers=BOTH) == exactly(1024)
    publish(index, [CLEARED])
    assert answer(index, tiers=BOTH) == exactly(0)
    publish(index, [page(TEXT, 0, 32, "CPU_PINNED")])
    assert answer(index, tiers=BOTH) == exactly(512)


def test_a_flush_leaves_storage_in_doubt() -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    publish(index, [page(TEXT, 0, 64, "DISK"), page(TEXT, 0, 32, "CPU_PINNED"), CLEARED])
    assert answer(index, tiers=BOTH) == exactly(0)
    assert answer(index, tiers=ALL) == (0, 1024)


def test_one_removal_ends_a_host_copy_however_often_it_was_told() -> None:
    """A copy is told again when the window of the same pages follows."""
    index = an_index(SGLANG_HYBRID, engine=SGLANG)
    publish(index, [page(TEXT, 0, 64, "CPU_PINNED")] * 3)
    assert answer(index, tiers=BOTH) == (0, 1024)
    publish(index, [removed(range(32, 64), "CPU_PINNED")])
    assert answer(index, tiers=BOTH) == (0, 512)


@pytest.mark.parametrize("size", [8, 32, 64])
def test_a_page_of_another_size_than_the_engine_s_is_a_contradiction(size: int) -> None:
    groups = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=size),)
    index = an_index(Topology(groups=groups), engine=SGLANG)
    publish(index, [page(TEXT, 0, 64, "GPU")])
    (pod,) = index.pods()
    assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_block_size")
    assert answer(index)[0] == 0
    assert answer(index)[1] >= 1024
