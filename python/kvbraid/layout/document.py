"""A plan as one JSON object, and back; and the fingerprint of what lies where in a block.

    {"block_bytes": ..., "num_blocks": ..., "fingerprint": "...", "buffers": [...],
     "groups": [...], "views": {...}, "aliases": {...}, "cross_layer": true,
     "why": "...", "warnings": []}

Law: `from_json(to_json(plan)) == plan`, and what a reader computes again (sums, runs, fingerprint)
must agree with what is written. The fingerprint leaves out the number of blocks, so pools of
different sizes can exchange blocks, and every sentence that is for people.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvbraid.errors import LayoutError, shown
from kvbraid.layout.plan import Buffer, Chunk, MemoryPlan, PlannedGroup, Reference, View
from kvbraid.spec import SpecKind

VERSION: Final = 1
"""Of the meaning of the bytes: part of every fingerprint."""


def to_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as plain lists, objects, strings and numbers.

    A layer whose name is a number is written as a number, as in `kvbraid model --groups --json`. A
    run is `[offset, length]` in buffer 0 and `[offset, length, buffer]` elsewhere.
    """
    return {
        "block_bytes": plan.block_bytes,
        "num_blocks": plan.num_blocks,
        "fingerprint": plan.fingerprint,
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
    try:
        plan = MemoryPlan(
            buffers=tuple(_read_buffer(each) for each in document["buffers"]),
            groups=tuple(_read_group(each) for each in document["groups"]),
            views={str(name): _read_view(each) for name, each in document["views"].items()},
            num_blocks=document["num_blocks"],
            aliases={str(name): str(owner) for name, owner in document["aliases"].items()},
            is_cross_layer=bool(document["cross_layer"]),
            why=str(document["why"]),
            warnings=tuple(str(each) for each in document["warnings"]),
        )
        again = to_json(plan)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        msg = f"not a memory plan: {type(error).__name__} {shown(str(error))}; write it anew"
        raise LayoutError(msg) from None
    different = [name for name in again if again[name] != document.get(name)]
    if different:
        msg = (
            f"the plan contradicts itself: {', '.join(different)} differ from what its content "
            "gives; it was changed or is from another version; write it anew"
        )
        raise LayoutError(msg)
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
            shape = [size for axis, size in enumerate(view.shape) if axis != view.blocks]
            strides: list[int] = []
            place: list[int] = [chunk.length, chunk.count]
            if reference.is_whole:  # Otherwise both depend on the number of blocks.
                strides = [
                    stride
                    for axis, (size, stride) in enumerate(
                        zip(view.shape, view.stride, strict=True)
                    )
                    if axis != view.blocks and size != 1  # One element is nowhere else.
                ]
                place += [chunk.offset, chunk.stride]
            rows.append([reference.buffer, chunk.name, view.dtype, shape, strides, place])
    return rows


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


def _read_buffer(row: Mapping[str, Any]) -> Buffer:
    return Buffer(**{**row, "axes": tuple(row["axes"]), "shape": tuple(row["shape"])})


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


def _read_group(row: Mapping[str, Any]) -> PlannedGroup:
    return PlannedGroup(
        kind=SpecKind(row["kind"]),
        block_size=row["block_size"],
        layers=tuple(str(each) for each in row["layers"]),
        references=tuple(_read_reference(each) for each in row["references"]),
    )


_CHUNK: Final = ("name", "offset", "length", "count", "stride", "heads_stride")


def _reference(reference: Reference) -> dict[str, Any]:
    return {
        "buffer": reference.buffer,
        "block_stride": reference.block_stride,
        "whole": reference.is_whole,
        "chunks": [[getattr(chunk, name) for name in _CHUNK] for chunk in reference.chunks],
    }


def _read_reference(row: Mapping[str, Any]) -> Reference:
    return Reference(
        buffer=row["buffer"],
        block_stride=row["block_stride"],
        is_whole=row["whole"],
        chunks=tuple(Chunk(**dict(zip(_CHUNK, each, strict=True))) for each in row["chunks"]),
    )


_VIEW: Final[Mapping[str, Callable[[Any], Any]]] = {
    "buffer": int,
    "shape": tuple,
    "stride": tuple,
    "offset": int,
    "dtype": str,
    "blocks": int,
    "heads": lambda value: value,
    "tokens": lambda value: value,
    "kernel_blocks": int,
    "rows_per_block": int,
}


def _view(view: View) -> dict[str, Any]:
    values = {name: getattr(view, name) for name in _VIEW}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


def _read_view(row: Mapping[str, Any]) -> View:
    return View(**{name: read(row[name]) for name, read in _VIEW.items()})
