"""A plan comes from outside as JSON: what is read is what was written, or it is refused."""

import json
import re
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kvbraid.errors import LayoutError
from kvbraid.layout import (
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    from_json,
    geometry_of,
    plan_memory,
    to_json,
)
from kvbraid.layout.check import MAX_PIECES
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

from tests.reference.layout_arrays import allocate, arrays_of

HEADS = Heads(num=2, key_dim=4, value_dim=4, dtype="bfloat16")
FULL = Page(kind=SpecKind.FULL_ATTENTION, block_size=4, shape=HEADS)
SMALL = Page(kind=SpecKind.MLA_ATTENTION, block_size=2, shape=replace(HEADS, num=1))
STATE = RecurrentState(
    tensors=(
        StateTensor(name="conv", dims=(3, 4), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(2, 5), dtype="float32"),
    )
)
MAMBA = Page(kind=SpecKind.MAMBA, block_size=4, shape=STATE, padded_bytes=FULL.page_bytes)
PIECES = Geometry(shape=(2, None, 4, 8), dtype="bfloat16", order=(0, 1, 2, 3), heads=0, tokens=2)


def attention(name: str, layout: Layout, page: Page = FULL) -> LayoutLayer:
    assert isinstance(page.shape, Heads)
    geometry = geometry_of(layout, page.shape, page.block_size)
    return LayoutLayer(name=name, page=page, geometry=geometry)


def group(*layers: LayoutLayer) -> LayoutGroup:
    page = layers[0].page
    assert isinstance(page, Page)
    return LayoutGroup(kind=page.kind, block_size=page.block_size, layers=layers)


ODD = replace(attention("2", Layout.NHD), geometry=PIECES)
PLANS: Final = {
    "states": plan_memory(
        [
            group(attention("0", Layout.HND)),
            group(LayoutLayer(name="1", page=MAMBA), LayoutLayer(name="0", page=MAMBA)),
        ],
        num_blocks=3,
        options=PlanOptions(aliases={"draft": "0"}),
    ),
    "heads first": plan_memory(
        [group(*(attention(str(i), Layout.HND) for i in range(3)))], num_blocks=2
    ),
    "packed": plan_memory(
        [group(attention("0", Layout.NHD), attention("1", Layout.NHD, SMALL))],
        num_blocks=3,
        options=PlanOptions(packed=True),
    ),
    "pieces": plan_memory([group(attention("a", Layout.NHD), ODD)], num_blocks=3),
    "no number of blocks": plan_memory(
        [group(attention("0", Layout.NHD), attention("1", Layout.NHD, SMALL))]
    ),
}
DEEP: Final = json.loads("[" * 900 + "]" * 900)
JUNK: Final[tuple[object, ...]] = (
    None, True, False, -1, 0, 1, 2, 3, 1.0, float("nan"), float("inf"), 2**31, 2**63, 10**4_000,
    "", "0", "x" * 5_000, "\ud800", [], {}, [None], [[0, 1]], {"": 1}, DEEP,
)  # fmt: skip


def nodes(value: object) -> list[tuple[Any, Any]]:
    """Return every place in a document: a list or an object, and an index or a name."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            found += nodes(value[key])
    return found


def read(document: Any) -> MemoryPlan | None:  # noqa: ANN401
    """Read a document, which may be refused with one line, in one way."""
    try:
        return from_json(document)
    except LayoutError as error:
        message = str(error)
    assert len(message) < 1_200
    assert "\n" not in message
    return None


def is_safe(plan: MemoryPlan) -> None:
    """Views stay in their buffers (numpy refuses one that does not), and so does what moves."""
    if plan.num_blocks is None:
        return
    if plan.size_bytes < 1 << 24:
        arrays_of(plan, allocate(plan))
    for group in plan.groups:
        assert set(group.layers_of_views().values()) == set(group.layers)
        for reference in group.references:
            held = plan.buffers[reference.buffer].block_bytes * plan.num_blocks
            last = (plan.num_blocks - 1) * reference.block_stride
            for run in (*reference.exact(), reference.whole() or (0, 0)):
                assert last + sum(run) <= held


@settings(max_examples=10 * settings().max_examples)
@given(
    name=st.sampled_from(list(PLANS)),
    place=st.integers(0, 10_000),
    how=st.sampled_from(("replace", "replace", "remove", "double", "add", "nudge")),
    junk=st.sampled_from(JUNK),
)
@example(name="pieces", place=1, how="replace", junk=2**62)
def test_a_changed_document_is_refused_or_says_what_the_plan_says(
    name: str, place: int, how: str, junk: object
) -> None:
    document = deepcopy(to_json(PLANS[name]))
    everything = nodes(document)
    holder, key = everything[place % len(everything)]
    if how == "remove":
        del holder[key]
    elif how == "double" and isinstance(holder, list):
        holder.append(deepcopy(holder[key]))
    elif how == "add" and isinstance(holder, dict):
        holder["more"] = junk
    elif how == "nudge" and type(holder[key]) is int:
        holder[key] += 1
    else:
        holder[key] = junk
    plan = read(document)
    if plan is not None:
        assert json.dumps(to_json(plan)) == json.dumps(document)
        is_safe(plan)


def changed(plan: MemoryPlan, data: st.DataObject) -> MemoryPlan:
    """Change one number of a view, a chunk, a reference or a buffer."""

    def nudged(record: Any) -> Any:  # noqa: ANN401
        names = [
            each.name
            for each in fields(record)
            if type(getattr(record, each.name)) in (int, tuple)
            and each.name not in ("chunks", "axes")
        ]
        name = data.draw(st.sampled_from(names))
        value = getattr(record, name)
        by = data.draw(st.sampled_from((-1, 1, 2, 64, -value if type(value) is int else 7)))
        if isinstance(value, tuple):
            at = data.draw(st.integers(0, len(value) - 1))
            value = (*value[:at], (value[at] or 0) + by, *value[at + 1 :])
            return replace(record, **{name: value})
        return replace(record, **{name: value + by})

    kind = data.draw(st.sampled_from(("view", "chunk", "reference", "buffer", "num_blocks")))
    if kind == "num_blocks":
        return replace(plan, num_blocks=(plan.num_blocks or 0) + 1)
    if kind == "view":
        name = data.draw(st.sampled_from(list(plan.views)))
        return replace(plan, views={**plan.views, name: nudged(plan.views[name])})
    if kind == "buffer":
        return replace(plan, buffers=(nudged(plan.buffers[0]), *plan.buffers[1:]))
    first, *others = plan.groups[0].references
    if kind == "reference":
        first = nudged(first)
    else:
        at = data.draw(st.integers(0, len(first.chunks) - 1))
        chunks = (*first.chunks[:at], nudged(first.chunks[at]), *first.chunks[at + 1 :])
        first = replace(first, chunks=chunks)
    mine = replace(plan.groups[0], references=(first, *others))
    return replace(plan, groups=(mine, *plan.groups[1:]))


@settings(max_examples=5 * settings().max_examples)
@given(name=st.sampled_from(list(PLANS)), data=st.data())
def test_a_plan_with_a_right_fingerprint_is_still_checked_to_stay_in_its_memory(
    name: str, data: st.DataObject
) -> None:
    wrong = changed(PLANS[name], data)
    try:
        document = to_json(wrong)
    except (ValueError, IndexError, ZeroDivisionError, TypeError):
        return
    plan = read(document)
    if plan is not None:
        assert plan == wrong
        is_safe(plan)


def test_what_is_no_document_is_refused() -> None:
    assert [read(each) for each in (*JUNK, (), b"{}", 10**5_000)] == [None] * (len(JUNK) + 3)


def test_a_document_of_too_many_pieces_is_refused_before_they_are_counted() -> None:
    document = deepcopy(to_json(PLANS["heads first"]))
    document["groups"][0]["references"][0]["chunks"][0][3] = 1 << 60
    with pytest.raises(LayoutError, match=f"expected at most {MAX_PIECES:,}"):
        from_json(document)


def test_a_document_of_another_version_is_refused() -> None:
    document = deepcopy(to_json(PLANS["packed"]))
    document["fingerprint"] = "0" * 32
    with pytest.raises(LayoutError, match="fingerprint differ"):
        from_json(document)


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("groups", 0, "layers"), ["0", "7"], "its layers are ('0', '7')"),
        (("groups", 0, "layers", 1), 0, "its layers are ('0', '0', '2')"),
        (("groups", 0, "references", 0, "block_stride"), 128_000, "128,000 bytes apart"),
        (("groups", 0, "references", 1), None, "a reference without chunks"),
        (("buffers", 0, "shape"), [2, 2, 3, 1, 4, 17], "at most 384 bytes of a block"),
    ],
)
def test_what_no_fingerprint_covers_is_checked(
    place: tuple[Any, ...], value: object, fault: str
) -> None:
    document = deepcopy(to_json(PLANS["heads first"]))
    *path, last = place
    holder: Any = document
    for key in path:
        holder = holder[key]
    if value is None:
        holder.append({"buffer": 99, "block_stride": 1, "whole": True, "chunks": []})
    else:
        holder[last] = value
    with pytest.raises(LayoutError, match=re.escape(fault)):
        from_json(document)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_read_back_from_text(name: str) -> None:
    text = json.dumps(to_json(PLANS[name]))
    assert from_json(json.loads(text)) == PLANS[name]
