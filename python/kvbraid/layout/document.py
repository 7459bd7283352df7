"""A plan as one JSON object, and back; and the fingerprint of what lies where in a block.

    {"block_bytes": ..., "num_blocks": ..., "fingerprint": "...", "buffers": [...],
     "groups": [...], "views": {...}, "aliases": {...}, "cross_layer": true,
     "why": "...", "warnings": []}

Invariant: `from_json(to_json(plan)) == plan`, and what a reader computes again (sums, runs,
fingerprint) must agree with what is written. The fingerprint leaves out the number of blocks, so
pools of different sizes can exchange blocks, and every sentence that is for people.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta
from msgspec.structs import asdict

from kvbraid.errors import LayoutError, shortened
from kvbraid.layout.check import check_integrity
from kvbraid.layout.plan import Buffer, Chunk, MemoryPlan, PlannedGroup, Reference, View
from kvbraid.models.shapes import ELEMENT_BYTES
from kvbraid.reading import MAX_SIZE, Fields, read_into
from kvbraid.spec import SpecKind

VERSION: Final = 1
"""Of the meaning of the bytes: part of every fingerprint."""

_Number = Annotated[int, Meta(ge=0, le=MAX_SIZE)]
_Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]


_Fields = TypeVar("_Fields", bound=Fields)


class _ChunkFields(Fields, frozen=True, array_like=True):
    name: str
    offset: _Number
    length: _Size
    count: _Size
    stride: _Number
    heads_stride: _Number


class _ViewFields(Fields, frozen=True):
    buffer: _Number
    shape: tuple[_Size | None, ...]
    stride: tuple[_Number, ...]
    offset: _Number
    dtype: Literal[tuple(ELEMENT_BYTES)]  # type: ignore[valid-type]  # Known when it runs.
    blocks: _Number
    heads: _Number | None
    tokens: _Number | None
    kernel_blocks: _Size
    rows_per_block: _Size


class _BufferFields(Fields, frozen=True):
    block_bytes: _Size
    slots: _Size
    why: str
    axes: tuple[str, ...]
    shape: tuple[_Size | None, ...]
    start: _Number | None


class _ReferenceFields(Fields, frozen=True):
    buffer: _Number
    block_stride: _Size
    whole: bool
    chunks: tuple[_ChunkFields, ...]


class _GroupFields(Fields, frozen=True):
    kind: SpecKind
    block_size: _Size
    layers: tuple[_Number | str, ...]
    used_bytes: _Number
    runs: tuple[tuple[_Number, ...], ...]
    references: tuple[_ReferenceFields, ...]


class _PlanFields(Fields, frozen=True):
    block_bytes: _Size
    num_blocks: _Size | None
    fingerprint: str
    buffers: tuple[_BufferFields, ...]
    groups: tuple[_GroupFields, ...]
    views: dict[str, _ViewFields]
    aliases: dict[str, str]
    cross_layer: bool
    why: str
    warnings: tuple[str, ...]


def to_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as plain lists, objects, strings and numbers.

    A layer whose name is a number is written as a number, as in `kvbraid model --groups --json`. A
    run is `[offset, length]` in buffer 0 and `[offset, length, buffer]` elsewhere.
    """
    return {
        "block_bytes": plan.block_bytes,
        "num_blocks": plan.num_blocks,
        "fingerprint": fingerprint(plan),
        "buffers": [_buffer(each) for each in plan.buffers],
        "groups": [_group(each) for each in plan.groups],
        "views": {name: _view(view) for name, view in plan.views.items()},
        "aliases": dict(plan.aliases),
        "cross_layer": plan.is_cross_layer,
        "why": plan.why,
        "warnings": list(plan.warnings),
    }


def from_json(document: Mapping[str, Any]) -> MemoryPlan:
    """Read a plan back.

    Raises:
        LayoutError: Not a plan, or one that contradicts itself.
    """
    found = _read(document)
    plan = MemoryPlan(
        buffers=tuple(Buffer(**asdict(each)) for each in found.buffers),
        groups=tuple(_read_group(each) for each in found.groups),
        views={name: View(**asdict(each)) for name, each in found.views.items()},
        num_blocks=found.num_blocks,
        aliases=found.aliases,
        is_cross_layer=found.cross_layer,
        why=found.why,
        warnings=found.warnings,
    )
    check_integrity(plan)
    again = to_json(plan)
    different = [name for name in again if again[name] != document[name]]
    if different:
        raise LayoutError(
            f"the plan contradicts itself: {', '.join(different)} differ from what its content "
            "gives; it was changed or is from another version; write it anew"
        )
    return plan


def fingerprint(plan: MemoryPlan) -> str:
    """Return a hash of the plan's blocks: 32 hexadecimal digits."""
    content = {
        "version": VERSION,
        "blocks": [buffer.block_bytes for buffer in plan.buffers],
        "groups": [_format(plan, group) for group in plan.groups],
    }
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _format(plan: MemoryPlan, group: PlannedGroup) -> list[object]:
    """What the bytes of one group's block mean: names, types, sizes, and where they lie."""
    rows: list[object] = [group.kind.value, group.block_size]
    for reference in group.references:
        for chunk in reference.chunks:
            view = plan.views[chunk.name]
            place = [chunk.length, chunk.count]
            if reference.is_whole:  # Otherwise both depend on the number of blocks.
                place += [chunk.offset, chunk.stride]
            rows.append([reference.buffer, chunk.name, view.dtype, list(_axes(view)), place])
    return rows


def _axes(view: View) -> Iterator[list[object]]:
    """Yield meaning, size and stride of each dimension inside a block.

    One element is nowhere else, so its stride is 0. Strides above the blocks' depend on the number
    of blocks; which of them is larger does not.
    """
    step = view.stride[view.blocks]
    above = sorted({each for each in view.stride if each > step})
    meanings = {view.heads: "heads", view.tokens: "tokens"}
    for axis, (size, stride) in enumerate(zip(view.shape, view.stride, strict=True)):
        if axis != view.blocks:
            inside = stride if stride <= step else -1 - above.index(stride)
            yield [meanings.get(axis, ""), size, 0 if size == 1 else inside]


def _name(name: str) -> str | int:
    return int(name) if name.isdecimal() and name == str(int(name)) else name


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        "block_bytes": buffer.block_bytes,
        "slots": buffer.slots,
        "why": buffer.why,
        "axes": list(buffer.axes),
        "shape": list(buffer.shape),
        "start": buffer.start,
    }


def _group(group: PlannedGroup) -> dict[str, Any]:
    return {
        "kind": group.kind.value,
        "block_size": group.block_size,
        "layers": [_name(each) for each in group.layers],
        "used_bytes": group.used_bytes,
        "runs": [
            [*run, *([reference.buffer] if reference.buffer else [])]
            for reference in group.references
            for run in reference.exact()
        ],
        "references": [_reference(each) for each in group.references],
    }


def _read(document: object) -> _PlanFields:
    views = document.get("views") if isinstance(document, dict) else None
    for name, view in views.items() if isinstance(views, dict) else ():
        # Alone, as msgspec does not say which value of an object with any names is wrong.
        _converted(view, _ViewFields, f"view {shortened(name)}: ")
    return _converted(document, _PlanFields)


def _converted(document: object, kind: type[_Fields], place: str = "") -> _Fields:
    prefix, remedy = f"not a memory plan: {place}", "write it anew"
    return read_into(kind, document, LayoutError, prefix=prefix, remedy=remedy)


def _read_group(found: _GroupFields) -> PlannedGroup:
    return PlannedGroup(
        kind=found.kind,
        block_size=found.block_size,
        layers=tuple(map(str, found.layers)),
        references=tuple(
            Reference(
                buffer=each.buffer,
                block_stride=each.block_stride,
                chunks=tuple(Chunk(**asdict(chunk)) for chunk in each.chunks),
                is_whole=each.whole,
            )
            for each in found.references
        ),
    )


def _reference(reference: Reference) -> dict[str, Any]:
    return {
        "buffer": reference.buffer,
        "block_stride": reference.block_stride,
        "whole": reference.is_whole,
        "chunks": [
            [getattr(chunk, name) for name in _ChunkFields.__struct_fields__]
            for chunk in reference.chunks
        ],
    }


def _view(view: View) -> dict[str, Any]:
    values = {name: getattr(view, name) for name in _ViewFields.__struct_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
