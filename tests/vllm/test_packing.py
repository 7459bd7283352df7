"""Packed groups are those of a real vLLM's own functions with a block-outermost layout."""

import random
import warnings
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kvbraid.models import CacheLayer, Heads, Page
from kvbraid.models.packing import packed_groups
from kvbraid.spec import SpecKind

from tests.unit.models.test_packing import PACKED, layers
from tests.vllm.test_groups import BLOCKS, HEADS, PAGES, ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of torch and vLLM, while they are imported.
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from tests.vllm.engine_groups import described

VECTORS: Final = st.builds(
    Heads,
    num=st.just(1),
    key_dim=st.sampled_from([132, 576, 584]),
    value_dim=st.just(0),
    dtype=st.sampled_from(["uint8", "bfloat16"]),
    replicated=st.just(True),
)
PADDED: Final = st.sampled_from([None, None, 1 << 17])
MIXED: Final = st.one_of(
    PAGES,
    st.builds(
        Page,
        kind=st.just(SpecKind.FULL_ATTENTION),
        block_size=BLOCKS,
        shape=HEADS.filter(lambda heads: heads.bytes_per_token < 2048),
        padded_bytes=PADDED,
    ),
    st.builds(
        Page,
        kind=st.just(SpecKind.MLA_ATTENTION),
        block_size=BLOCKS,
        shape=VECTORS,
        padded_bytes=PADDED,
    ),
    st.builds(
        Page,
        kind=st.just(SpecKind.SLIDING_WINDOW_MLA),
        block_size=BLOCKS,
        shape=VECTORS,
        window=st.sampled_from([8, 128]),
    ),
)


@st.composite
def models(draw: st.DrawFn) -> tuple[CacheLayer, ...]:
    """A few kinds of pages, in a pattern that repeats or dealt out at random.

    In every other model all blocks have one size, so that pages of several sizes share a type.
    Where vLLM packs nothing, it takes all latents with one window for equal, whatever their width
    and block; no published model has two of these, and none is drawn here.
    """
    pages = draw(st.lists(MIXED, min_size=2, max_size=6))
    if draw(st.booleans()):
        pages = [replace(page, block_size=16) for page in pages]
    order = random.Random(draw(st.integers(0, 1 << 16)))
    patterns = [page for page in pages for _ in range(order.choice([1, 1, 1, 2, 5]))]
    dealt = patterns * draw(st.integers(1, 12))
    if draw(st.booleans()):
        order.shuffle(dealt)
        dealt = dealt[: draw(st.integers(1, len(dealt)))]
    latents = {page for page in dealt if page.kind is SpecKind.SLIDING_WINDOW_MLA}
    packed = len({page.page_bytes for page in dealt}) > 1 and set(dealt) > latents
    assume(len(latents) < 2 or packed)
    return tuple(CacheLayer(number=number, page=page) for number, page in enumerate(dealt))


@settings(max_examples=2_000)
@given(model=models())
@pytest.mark.timeout(600)
def test_random_layers_are_packed_into_the_engines_own_groups(
    model: tuple[CacheLayer, ...],
) -> None:
    assert ours(model, packed_groups) == described(model, KVCacheLayout.BLNHC)


@pytest.mark.parametrize("case", PACKED)
def test_a_models_layers_are_packed_as_the_engine_packs_them(case: str) -> None:
    model = layers(*PACKED[case][0])
    assert ours(model, packed_groups) == described(model, KVCacheLayout.BLNHC)
