"""Plans with equal fingerprints have the same bytes at the same places, whatever was changed.

What a plan says is written out here without its own words: for each view of a group, which byte of
the block each element is, with the dimensions told apart by their meaning.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.layout import (
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    View,
    fingerprint,
    geometry_of,
    plan_memory,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import ELEMENT_BYTES, Heads, RecurrentState
from kvbraid.spec import SpecKind

from tests.reference.layout_strategies import Case, cases

Layer = LayoutLayer
OTHER_TYPE = {
    "float32": "float32",
    "bfloat16": "float16",
    "float16": "bfloat16",
    "float8_e4m3fn": "float8_e5m2",
    "float8_e5m2": "int8",
    "int8": "uint8",
    "uint8": "float8_e4m3fn",
}


def bytes_of(view: View) -> object:
    """Return the byte of each element of block 0, and what its dimensions mean."""
    strides = [each * ELEMENT_BYTES[view.dtype] for each in view.stride]
    sizes = [each or 1 for each in view.shape]
    sizes[view.blocks] = view.kernel_blocks
    where = np.full((), view.offset)
    for size, stride in zip(sizes, strides, strict=True):
        where = np.add.outer(where, np.arange(size) * stride)
    meanings = {view.heads: "heads", view.tokens: "tokens"}
    named = [meanings.get(axis) for axis in range(len(sizes)) if axis != view.blocks]
    return view.buffer, view.dtype, named, np.moveaxis(where, view.blocks, 0).tolist()


def said(plan: MemoryPlan) -> object:
    """Return what a plan says about a block of each group."""
    return [buffer.block_bytes for buffer in plan.buffers], [
        (
            group.kind,
            group.block_size,
            [
                (chunk.name, bytes_of(plan.views[chunk.name]))
                for reference in group.references
                for chunk in reference.chunks
            ],
        )
        for group in plan.groups
    ]


def renamed(layer: Layer) -> Layer:
    return replace(layer, name=f"{layer.name}.other")


def retyped(layer: Layer) -> Layer:
    page = layer.page
    if not isinstance(page, Page):
        return layer
    if isinstance(page.shape, RecurrentState):
        tensors = [replace(each, dtype=OTHER_TYPE[each.dtype]) for each in page.shape.tensors]
        return replace(layer, page=replace(page, shape=RecurrentState(tensors=tuple(tensors))))
    shape = replace(page.shape, dtype=OTHER_TYPE[page.shape.dtype])
    geometry = layer.geometry and replace(layer.geometry, dtype=OTHER_TYPE[layer.geometry.dtype])
    return replace(layer, page=replace(page, shape=shape), geometry=geometry)


def padded(layer: Layer) -> Layer:
    page = layer.page
    if not isinstance(page, Page):
        return layer
    return replace(layer, page=replace(page, padded_bytes=page.page_bytes + 64))


def reordered(layer: Layer) -> Layer:
    """Store the last two dimensions the other way around."""
    geometry = layer.geometry
    if geometry is None:
        return layer
    *first, last, before = geometry.order
    *outer, inner, between = geometry.layer_order
    return replace(
        layer,
        geometry=replace(
            geometry, order=(*first, before, last), with_layers=(*outer, between, inner)
        ),
    )


def meant_otherwise(layer: Layer) -> Layer:
    """Take heads for tokens, and tokens for heads."""
    geometry = layer.geometry
    if geometry is None:
        return layer
    return replace(layer, geometry=replace(geometry, heads=geometry.tokens, tokens=geometry.heads))


Change: TypeAlias = Callable[[Layer], Layer]
CHANGES: tuple[Change, ...] = (renamed, retyped, padded, reordered, meant_otherwise)


def changed(case: Case, index: int, change: Change) -> Case:
    """Change one layer of a case."""
    number = 0
    groups = []
    for group in case.groups:
        layers = []
        for layer in group.layers:
            layers.append(change(layer) if number == index else layer)
            number += 1
        groups.append(replace(group, layers=tuple(layers)))
    return replace(case, groups=tuple(groups))


def regrouped(case: Case, group: LayoutGroup) -> Case:
    return replace(case, groups=(*case.groups[:-1], group))


@given(case=cases(), data=st.data(), change=st.sampled_from(CHANGES))
def test_a_plan_that_says_something_else_has_another_fingerprint(
    case: Case, data: st.DataObject, change: Change
) -> None:
    index = data.draw(st.integers(0, len(case.layers) - 1))
    last = case.groups[-1]
    others = [
        changed(case, index, change),
        regrouped(case, replace(last, block_size=last.block_size * 2)),
        regrouped(case, replace(last, kind=SpecKind.SINK_FULL_ATTENTION)),
        regrouped(case, replace(last, layers=last.layers[::-1])),
        replace(case, options=replace(case.options, alignment=256)),
        replace(case, options=replace(case.options, packed=not case.options.packed)),
    ]
    plans = []
    for each in (case, *others):
        try:
            plans.append(each.plan(num_blocks=2))
        except InvalidValueError:
            continue
    by_fingerprint: dict[str, object] = {}
    for plan in plans:
        what = said(plan)
        assert by_fingerprint.setdefault(fingerprint(plan), what) == what


def pool(geometry: Geometry) -> MemoryPlan:
    heads = Heads(num=16, key_dim=4, value_dim=4, dtype="bfloat16")
    page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
    layer = LayoutLayer(name="0", page=page, geometry=geometry)
    group = LayoutGroup(kind=page.kind, block_size=16, layers=(layer,))
    return plan_memory([group], num_blocks=4, options=PlanOptions())


def test_as_many_heads_as_tokens_are_not_taken_for_tokens() -> None:
    heads = Heads(num=16, key_dim=4, value_dim=4, dtype="bfloat16")
    by_head = geometry_of(Layout.BLHNC, heads, 16)
    by_token = replace(by_head, heads=2, tokens=1)
    first, second = pool(by_head), pool(by_token)
    assert first.views["0"].stride == second.views["0"].stride
    assert fingerprint(first) != fingerprint(second)


@pytest.mark.parametrize("order", [(0, 1, 3, 2, 4), (0, 1, 2, 4, 3)])
def test_another_order_inside_blocks_that_are_not_first_is_another_fingerprint(
    order: tuple[int, ...],
) -> None:
    shape = (2, None, 16, 16, 4)
    plain = Geometry(shape=shape, dtype="bfloat16", order=(0, 1, 2, 3, 4), heads=3, tokens=2)
    other = replace(plain, order=order)
    assert fingerprint(pool(plain)) != fingerprint(pool(other))
