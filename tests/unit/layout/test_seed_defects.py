"""Defects that an earlier cross-layer layout for hybrids had, and that plans here do not have.

They are those of vLLM's pull request 34373, as read in its last commit: each test says what is
right instead.
"""

from dataclasses import replace

import pytest
from kvbraid.errors import LayoutError
from kvbraid.layout import (
    Chunk,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    PlanOptions,
    Split,
    geometry_of,
    plan_memory,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, Shape, StateTensor
from kvbraid.spec import SpecKind

from tests.reference.layout_arrays import covered

FLASH = Geometry(  # Stored blocks, layers, 2, tokens, heads, size.
    shape=(2, None, 16, 4, 64),
    dtype="bfloat16",
    order=(0, 1, 2, 3, 4),
    with_layers=(2, 0, 1, 3, 4, 5),
    heads=3,
    tokens=2,
)
BLOCKS_NOT_FIRST = replace(FLASH, with_layers=(1, 2, 0, 3, 4, 5))
"""Stored 2, blocks, layers, ..."""


def heads(num: int = 4, dim: int = 64, dtype: str = "bfloat16") -> Heads:
    return Heads(num=num, key_dim=dim, value_dim=dim, dtype=dtype)


def page(shape: Shape, block_size: int = 16, padded_bytes: int | None = None) -> Page:
    kind = SpecKind.MAMBA if isinstance(shape, RecurrentState) else SpecKind.FULL_ATTENTION
    return Page(kind=kind, block_size=block_size, shape=shape, padded_bytes=padded_bytes)


def attention(
    name: str,
    mine: Page,
    layout: Layout = Layout.NHD,
    kernel_block: int | None = None,
    geometry: Geometry | None = None,
) -> LayoutLayer:
    assert isinstance(mine.shape, Heads)
    found = geometry or geometry_of(layout, mine.shape, kernel_block or mine.block_size)
    return LayoutLayer(name=name, page=mine, geometry=found, kernel_block=kernel_block)


def group(*layers: LayoutLayer) -> LayoutGroup:
    first = layers[0].page
    assert isinstance(first, Page)
    return LayoutGroup(kind=first.kind, block_size=first.block_size, layers=layers)


def state(*tensors: tuple[str, tuple[int, ...], str]) -> RecurrentState:
    return RecurrentState(
        tensors=tuple(
            StateTensor(name=name, dims=dims, dtype=kind) for name, dims, kind in tensors
        )
    )


def test_a_layer_cut_by_heads_has_a_chunk_of_as_many_pieces() -> None:
    """One chunk of a page's length held none of layer 5's bytes."""
    mine = page(heads())
    plan = plan_memory(
        [group(*(attention(str(i), mine, Layout.HND) for i in range(12)))], num_blocks=2
    )
    chunk = plan.groups[0].references[0].chunks[5]
    assert [offset for offset, _ in chunk.pieces()] == [20_480, 69_632, 118_784, 167_936]
    assert chunk == Chunk(
        name="5", offset=20_480, length=4_096, count=4, stride=49_152, heads_stride=49_152
    )


def test_a_layer_in_interleaved_kernel_blocks_has_a_chunk_of_all_of_them() -> None:
    """One chunk held the first of 17 kernel blocks."""
    mine = page(heads(2, 256), block_size=544)
    layers = (attention(str(i), mine, Layout.NHD, 32) for i in range(12))
    options = PlanOptions(split=Split.INTERLEAVED)
    plan = plan_memory([group(*layers)], num_blocks=2, options=options)
    chunk = plan.groups[0].references[0].chunks[1]
    assert (chunk.offset, chunk.length, chunk.count, chunk.stride) == (
        65_536,
        65_536,
        17,
        12 * 65_536,
    )
    assert plan.groups[0].references[0].exact() == ((0, plan.block_bytes),)


def test_a_padded_attention_page_is_viewed_with_strides() -> None:
    """It was viewed by a reshape that padding forbids."""
    mine = page(heads(2, 96), padded_bytes=16_384)
    plan = plan_memory([group(*(attention(str(i), mine) for i in range(3)))], num_blocks=4)
    view = plan.views["1"]
    assert view.shape == (2, 4, 16, 2, 96)
    assert view.stride == (3_072, 24_576, 192, 96, 1)
    assert plan.groups[0].references[0].exact() == tuple((i * 16_384, 12_288) for i in range(3))


def test_attention_and_a_state_share_a_slot() -> None:
    """Their keys differed, and an assertion failed."""
    mine = page(heads())
    kept = state(("conv", (4, 64), "bfloat16"), ("ssm", (8, 8, 8), "float32"))
    recurrent = LayoutLayer(name="1", page=page(kept, padded_bytes=mine.page_bytes))
    plan = plan_memory([group(attention("0", mine)), group(recurrent)], num_blocks=2)
    assert [buffer.slots for buffer in plan.buffers] == [1]
    assert {plan.views[name].offset for name in ("0", "1.conv")} == {0}


def test_latents_share_one_buffer() -> None:
    """Without heads they were taken for unknown, and got a buffer per layer."""
    latent = Heads(num=1, key_dim=576, value_dim=0, dtype="bfloat16", replicated=True)
    layers = (attention(str(i), page(latent, 64)) for i in range(61))
    plan = plan_memory([group(*layers)], num_blocks=2)
    assert [(buffer.slots, buffer.block_bytes) for buffer in plan.buffers] == [(61, 4_497_408)]


def test_references_need_no_tensor_to_be_read() -> None:
    """Strides were asked of tensors by a method that they do not have."""
    plan = plan_memory([group(attention("0", page(heads())))])
    assert plan.groups[0].references[0].exact() == ((0, plan.block_bytes),)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        (heads(4, 64), 64 * 2),
        (heads(8, 128, "float8_e4m3fn"), 128),
        (Heads(num=1, key_dim=576, value_dim=0, dtype="bfloat16", replicated=True), 0),
    ],
)
def test_the_distance_between_heads_is_the_layers_own(shape: Heads, stride: int) -> None:
    """It was found with heads, sizes and a type that no layer had, and failed for latents."""
    plan = plan_memory([group(attention("0", page(shape)))], num_blocks=2)
    assert plan.groups[0].references[0].chunks[0].heads_stride == stride


def test_a_group_has_a_reference_for_each_buffer_that_it_touches() -> None:
    """Only the first buffer was told."""
    small, large = page(heads(2)), page(heads(4))
    plan = plan_memory(
        [group(attention("0", small), attention("1", large), attention("2", small))],
        num_blocks=2,
    )
    references = plan.groups[0].references
    assert [each.buffer for each in references] == [0, 1]
    assert [[chunk.name for chunk in each.chunks] for each in references] == [["0", "2"], ["1"]]


def test_sharers_of_a_slot_have_views_of_their_own() -> None:
    """All had the view of the first."""
    wide, long = page(heads(8), block_size=32), page(heads(16), block_size=16)
    plan = plan_memory([group(attention("a", wide)), group(attention("b", long))], num_blocks=4)
    assert plan.views["a"].shape == (2, 4, 32, 8, 64)
    assert plan.views["b"].shape == (2, 4, 16, 16, 64)
    assert plan.views["a"].buffer == plan.views["b"].buffer


def test_every_state_that_shares_a_slot_has_chunks_with_its_own_name() -> None:
    """Only the first one's name was told."""
    kept = state(*((f"{name}", (4, 8), "bfloat16") for name in ("conv", "ssm", "state_2")))
    layers = [LayoutLayer(name=name, page=page(kept)) for name in ("0", "1")]
    plan = plan_memory([group(each) for each in layers], num_blocks=2)
    names = [[chunk.name for chunk in each.references[0].chunks] for each in plan.groups]
    assert names == [["0.conv", "0.ssm", "0.state_2"], ["1.conv", "1.ssm", "1.state_2"]]


def test_a_layer_whose_blocks_are_not_first_tells_where_they_are() -> None:
    """Its blocks were said to be dimension 0."""
    layer = attention("0", page(heads()), geometry=BLOCKS_NOT_FIRST)
    plan = plan_memory([group(layer)], num_blocks=4)
    (buffer,) = plan.buffers
    assert (buffer.axes, buffer.shape) == (("pieces", "blocks", "bytes"), (2, 4, 8_192))
    assert (plan.views["0"].blocks, buffer.axis("layers")) == (1, None)
    (reference,) = plan.groups[0].references
    assert (reference.whole(), reference.block_stride) == (None, 8_192)
    assert reference.exact() == ((0, 8_192), (4 * 8_192, 8_192))


def test_a_padded_page_is_not_cut_by_heads() -> None:
    """Whether a page divides into heads was not checked; padding belongs to a page, not a head."""
    mine = page(heads(3), padded_bytes=12_800)  # No third of it is a whole number of bytes.
    plan = plan_memory(
        [group(*(attention(str(i), mine, Layout.HND) for i in range(2)))], num_blocks=2
    )
    assert plan.groups[0].references[0].exact() == ((0, 12_288), (12_800, 12_288))
    assert covered(plan).foreign == 0


def test_a_state_in_a_page_of_no_whole_elements_is_refused() -> None:
    """A page of 102 bytes gave float32 a block stride of 25 elements, for 25.5."""
    kept = state(("conv", (1,), "bfloat16"), ("ssm", (25,), "float32"))
    layer = LayoutLayer(name="7", page=page(kept))
    with pytest.raises(
        LayoutError, match=r"7\.ssm: its offset of 2 bytes is no multiple of the 4"
    ):
        plan_memory([group(layer)], num_blocks=2)
    even = LayoutLayer(name="7", page=page(state(("ssm", (25,), "float32")), padded_bytes=102))
    with pytest.raises(LayoutError, match=r"7\.ssm: its block stride of 102 bytes"):
        plan_memory([group(even)], num_blocks=2)


@pytest.mark.parametrize("split", [None, *Split])
def test_a_kernel_block_that_does_not_divide_its_block_is_refused(split: Split | None) -> None:
    """It was rounded down, and taken from the first sharer alone."""
    first = attention("0", page(heads(8), block_size=32), Layout.NHD, 32)
    second = attention("1", page(heads(16), block_size=16), Layout.NHD, 16)
    wrong = replace(second, kernel_block=12, geometry=geometry_of(Layout.NHD, heads(16), 12))
    options = PlanOptions(split=split)
    plan_memory([group(first), group(second)], num_blocks=2, options=options)
    with pytest.raises(LayoutError, match="layer 1: kernel blocks of 12 tokens do not divide"):
        plan_memory([group(first), group(wrong)], num_blocks=2, options=options)
    isolated = replace(BLOCKS_NOT_FIRST, shape=(2, None, 12, 4, 64))
    alone = attention("2", page(heads()), kernel_block=12, geometry=isolated)
    with pytest.raises(LayoutError, match="layer 2: kernel blocks of 12 tokens do not divide"):
        plan_memory([group(alone)], num_blocks=2, options=options)
