"""Random layers, groups and options for tests of plans: small, and of every kind.

Most cases can be planned. A case is drawn from a few templates, so that groups have pages that fit
into each other's slots: pages are padded to the largest, or each template has a size of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from hypothesis import strategies as st
from kvbraid.layout import (
    ConnectorForm,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    Split,
    UnknownPage,
    geometry_of,
    plan_memory,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import ELEMENT_BYTES, Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

DTYPES = tuple(ELEMENT_BYTES)
BLOCKS_FIRST = (Layout.NHD, Layout.HND, Layout.BLNHC, Layout.BLHNC, Layout.BHLNC)
FORMS = ("layers second", "layers third", "layers fourth", "any", None)
"""Where layers are in an order with layers: after blocks, later, anywhere; or there is none."""
UNPROBED = "its backend answered with an exception: ValueError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a plan is made from."""

    groups: tuple[LayoutGroup, ...]
    options: PlanOptions
    num_blocks: int

    def plan(self, num_blocks: int | None = None) -> MemoryPlan:
        """Return the plan, with a pool of another size if one is given."""
        return plan_memory(
            self.groups, num_blocks=num_blocks or self.num_blocks, options=self.options
        )

    @property
    def layers(self) -> list[LayoutLayer]:
        """All layers, group by group."""
        return [layer for group in self.groups for layer in group.layers]


@st.composite
def heads(draw: st.DrawFn) -> Heads:
    """Keys and values, latents, and quantized ones with scales beside them."""
    key_dim = draw(st.sampled_from((4, 8, 2, 6, 1)))
    dtype = draw(st.sampled_from(DTYPES))
    form = draw(st.sampled_from(("equal", "equal", "equal", "latent", "unequal", "scales")))
    if form == "latent":
        return Heads(num=1, key_dim=key_dim, value_dim=0, dtype=dtype, replicated=True)
    value_dim = draw(st.sampled_from((2, 4, 12))) if form == "unequal" else key_dim
    return Heads(
        num=draw(st.sampled_from((2, 4, 1, 3))),
        key_dim=key_dim,
        value_dim=value_dim,
        dtype=draw(st.sampled_from(("uint8", "float8_e4m3fn"))) if form == "scales" else dtype,
        scale_bytes=draw(st.sampled_from((8, 4, 3))) if form == "scales" else 0,
    )


@st.composite
def states(draw: st.DrawFn) -> RecurrentState:
    """A state of up to four tensors, usually wider types last or first."""
    dims = st.lists(st.integers(1, 5), min_size=1, max_size=3)
    names = ("conv", "ssm", "state_2", "state_3")[: draw(st.integers(1, 4))]
    return RecurrentState(
        tensors=tuple(
            StateTensor(name=name, dims=(4, *draw(dims)), dtype=draw(st.sampled_from(DTYPES)))
            for name in names
        )
    )


@st.composite
def odd_geometries(
    draw: st.DrawFn, heads: Heads, tokens: int, forms: Sequence[str | None] = FORMS
) -> Geometry:
    """A geometry that no layout has: any order of its dimensions, with and without layers."""
    halves = heads.key_dim == heads.value_dim and not heads.scale_bytes
    named: list[tuple[str, int | None]] = [("blocks", None), ("tokens", tokens)]
    if not heads.replicated:
        named.append(("heads", heads.num))
    if halves:
        named.append(("halves", 2))
    content = heads.bytes_per_token // heads.num
    dtype = "uint8" if heads.scale_bytes else heads.dtype
    content //= ELEMENT_BYTES[dtype]
    named = [*draw(st.permutations(named)), ("content", content // 2 if halves else content)]
    names = [name for name, _ in named]
    rank, blocks = len(named), names.index("blocks")
    with_layers: tuple[int, ...] | None = None
    form = draw(st.sampled_from(forms))
    if form == "any":
        with_layers = tuple(draw(st.permutations(range(rank + 1))))
    elif form is not None:  # Blocks come first.
        order = [each + 1 for each in draw(st.permutations(range(rank))) if each != blocks]
        order.insert(FORMS.index(form), 0)
        with_layers = (blocks + 1, *order)
    return Geometry(
        shape=tuple(size for _, size in named),
        dtype=dtype,
        order=tuple(draw(st.permutations(range(rank)))),
        with_layers=with_layers,
        heads=names.index("heads") if "heads" in names else None,
        tokens=names.index("tokens"),
    )


@st.composite
def attention(
    draw: st.DrawFn, split: Split | None, layout: Layout | None, page: Page | None = None
) -> LayoutLayer:
    """A layer with keys and values; no layout, no page: any."""
    if page is None:
        shape, tokens = draw(heads()), draw(st.sampled_from((4, 2, 8, 6)))
        kind = SpecKind.MLA_ATTENTION if shape.replicated else SpecKind.FULL_ATTENTION
        entry = draw(st.sampled_from((1, 1, 1, 2))) if split is None else 1
        page = Page(kind=kind, block_size=tokens, shape=shape, tokens_per_entry=entry)
    assert isinstance(page.shape, Heads)
    kernel = None
    if split is not None:
        ratios = [each for each in (2, 1, 4) if page.block_size % each == 0]
        kernel = page.block_size // draw(st.sampled_from(ratios))
    tokens = kernel or page.block_size // page.tokens_per_entry
    layout = layout or draw(st.sampled_from((*BLOCKS_FIRST, *Layout, *[None] * 6)))
    geometry = (
        draw(odd_geometries(page.shape, tokens))
        if layout is None
        else geometry_of(layout, page.shape, tokens)
    )
    layer = LayoutLayer(name="?", page=page, geometry=geometry, kernel_block=kernel)
    if draw(st.integers(0, 19)) == 0:
        return replace(layer, geometry=None, kernel_block=None, unprobed=UNPROBED)
    return layer


def reshaped(
    draw: st.DrawFn, layer: LayoutLayer, split: Split | None, layout: Layout | None
) -> LayoutLayer:
    """A layer of as many bytes, with other heads and another block, if it keeps heads."""
    page = layer.page
    if not isinstance(page, Page) or not isinstance(page.shape, Heads) or page.block_size % 4:
        return layer
    other = replace(
        page,
        kind=SpecKind.SLIDING_WINDOW,
        window=page.block_size,
        block_size=page.block_size // 2,
        shape=replace(page.shape, num=page.shape.num * 2, replicated=False),
    )
    return draw(attention(split, layout, other))


@st.composite
def templates(draw: st.DrawFn, split: Split | None, layout: Layout | None) -> LayoutLayer:
    """A layer of any kind."""
    kind = draw(st.sampled_from(("attention",) * 6 + ("state",) * 3 + ("unknown",)))
    if kind == "attention":
        return draw(attention(split, layout))
    if kind == "state":
        tokens = draw(st.sampled_from((4, 8)))
        page = Page(kind=SpecKind.MAMBA, block_size=tokens, shape=draw(states()))
        return LayoutLayer(name="?", page=page)
    size = draw(st.sampled_from((32, 64, 128)))
    return LayoutLayer(name="?", page=UnknownPage(type_name="RingSpec", page_bytes=size))


@st.composite
def cut_pages(draw: st.DrawFn, split: Split | None) -> LayoutLayer:
    """A layer whose backend stores something before layers, so that pages are cut."""
    layer = draw(attention(split, Layout.BHLNC))
    if layer.geometry is None or layer.heads is None or draw(st.booleans()):
        return layer
    tokens = layer.geometry.shape[2]
    assert tokens is not None
    return replace(layer, geometry=draw(odd_geometries(layer.heads, tokens, FORMS[1:3])))


def padded(layer: LayoutLayer, page_bytes: int) -> LayoutLayer:
    """A layer whose pages have this size; a padded page is not split."""
    page = layer.page
    if page.page_bytes == page_bytes or not isinstance(page, Page):
        return layer
    if layer.is_split:
        assert isinstance(page.shape, Heads)
        geometry = geometry_of(Layout.BLHNC, page.shape, page.block_size)
        layer = replace(layer, geometry=geometry, kernel_block=None)
    return replace(layer, page=replace(page, padded_bytes=page_bytes))


@st.composite
def palettes(draw: st.DrawFn, split: Split | None, packed: bool) -> list[LayoutLayer]:
    """Templates: of one page size by padding, of one by shape, or each of its own."""
    layout = draw(st.sampled_from((*[None] * 6, *BLOCKS_FIRST, Layout.HND)))
    num = draw(st.sampled_from((1, 2, 3)))
    found = [draw(templates(split, layout)) for _ in range(num)]
    if draw(st.integers(0, 2)) == 0:
        found.append(reshaped(draw, found[0], split, layout))
    if not packed and draw(st.integers(0, 2)):
        largest = max(each.page.page_bytes for each in found)
        step = draw(st.sampled_from((4, 4, 4, 1, 16)))
        size = -(-largest // step) * step
        found = [padded(each, size) for each in found]
    return found


@st.composite
def groups_of(
    draw: st.DrawFn, palette: Sequence[LayoutLayer], is_packed: bool
) -> tuple[LayoutGroup, ...]:
    """Up to four groups of up to four layers, now and then of several templates in one group."""
    names = map("model.layers.{}".format, count())
    align = st.sampled_from((1,) * 12 + (2, 4, 16))
    found = []
    for _ in range(draw(st.sampled_from((2, 1, 3, 4)))):
        first = draw(st.sampled_from(palette))
        is_mixed = draw(st.integers(0, 3)) in ((0, 1, 2) if is_packed else (0,))
        layers = [first]
        for _ in range(draw(st.sampled_from((1, 2, 0, 3)))):
            layers.append(draw(st.sampled_from(palette)) if is_mixed else first)
        alignment = draw(align)
        page = first.page
        found.append(
            LayoutGroup(
                kind=page.kind if isinstance(page, Page) else SpecKind.FULL_ATTENTION,
                block_size=page.block_size if isinstance(page, Page) else 16,
                layers=tuple(
                    replace(each, name=next(names), alignment=alignment) for each in layers
                ),
            )
        )
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Groups and options of any kind; most of them can be planned."""
    split = draw(st.sampled_from((None, Split.INTACT, Split.INTERLEAVED)))
    packed = draw(st.sampled_from((False, False, True)))
    is_cut = draw(st.integers(0, 3)) == 0
    palette = [draw(cut_pages(split))] if is_cut else draw(palettes(split, packed))
    groups = draw(groups_of(palette, packed))
    names = [layer.name for group in groups for layer in group.layers if layer.state is None]
    has_alias = draw(st.booleans()) and bool(names)
    options = PlanOptions(
        takes=draw(st.sampled_from((ConnectorForm.HYBRID,) * 6 + (*ConnectorForm, None))),
        split=split,
        packed=packed,
        alignment=draw(st.sampled_from((1, 1, 1, 1, 64, 100))),
        aliases={"draft.0": names[0]} if has_alias else {},
    )
    return Case(groups=groups, options=options, num_blocks=draw(st.integers(2, 4)))
