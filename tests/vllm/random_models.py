"""Random models whose layers differ in kind and size, and the groups that we form of them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import Final

from hypothesis import assume
from hypothesis import strategies as st
from kvbraid.errors import TopologyError
from kvbraid.models import (
    CacheLayer,
    Heads,
    LayerGroup,
    Page,
    RecurrentState,
    StateTensor,
    form_groups,
)
from kvbraid.spec import SpecKind

BLOCKS: Final = st.sampled_from([16, 16, 16, 32, 48])
HEADS: Final = st.builds(
    Heads,
    num=st.sampled_from([1, 2, 3, 4, 8]),
    key_dim=st.sampled_from([64, 96, 128]),
    value_dim=st.sampled_from([64, 128]),
    dtype=st.sampled_from(["float8_e4m3fn", "bfloat16"]),
    scale_bytes=st.sampled_from([0, 0, 0, 8]),
)
LATENTS: Final = st.builds(
    Heads,
    num=st.just(1),
    key_dim=st.sampled_from([64, 128, 576]),
    value_dim=st.just(0),
    dtype=st.just("bfloat16"),
    replicated=st.just(True),
)
STATES: Final = st.builds(
    lambda sizes: RecurrentState(
        tensors=tuple(
            StateTensor(name=name, dims=(num, width), dtype=dtype)
            for name, (num, width, dtype) in zip(("conv", "ssm"), sizes, strict=False)
        )
    ),
    st.lists(
        st.tuples(
            st.sampled_from([2, 8]),
            st.sampled_from([64, 192, 1024]),
            st.sampled_from(["bfloat16", "float32"]),
        ),
        min_size=1,
        max_size=2,
    ),
)
PAGES: Final = st.one_of(
    st.builds(Page, kind=st.just(SpecKind.FULL_ATTENTION), block_size=BLOCKS, shape=HEADS),
    st.builds(
        Page,
        kind=st.just(SpecKind.SLIDING_WINDOW),
        block_size=BLOCKS,
        shape=HEADS,
        window=st.sampled_from([64, 100]),
    ),
    st.builds(
        Page,
        kind=st.just(SpecKind.CHUNKED_LOCAL_ATTENTION),
        block_size=BLOCKS,
        shape=HEADS.map(lambda heads: replace(heads, value_dim=heads.key_dim)),
        chunk=st.sampled_from([64, 128]),
    ),
    st.builds(Page, kind=st.just(SpecKind.MLA_ATTENTION), block_size=BLOCKS, shape=LATENTS),
    st.builds(Page, kind=st.just(SpecKind.MAMBA), block_size=BLOCKS, shape=STATES),
)
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


def ours(
    layers: Sequence[CacheLayer], form: Callable[..., tuple[LayerGroup, ...]] = form_groups
) -> list[object] | str:
    """The groups of these layers as rows, and what they have in common."""
    try:
        groups = form(layers)
    except TopologyError:
        return "refused"
    rows: list[object] = [row(group) for group in groups]
    if len(groups) > 1:
        sizes = [group.page.block_size for group in groups]
        rows.append((lcm(*sizes), gcd(*sizes)))
    return [*rows, max(group.block_bytes for group in groups)]


def row(group: LayerGroup) -> tuple[object, ...]:
    pages = sorted({layer.page.page_bytes for layer in group.layers})
    return list(group.numbers), group.kind.value, group.page.block_size, pages
