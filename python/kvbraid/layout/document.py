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
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvbraid.errors import LayoutError
from kvbraid.layout.check import check_integrity
from kvbraid.layout.plan import Buffer, Chunk, MemoryPlan, PlannedGroup, Reference, View
from kvbraid.layout.reading import (
    Reader,
    all_of,
    fields,
    flag,
    layer_name,
    mapping,
    number,
    one_of,
    or_none,
    row,
    string,
)
from kvbraid.models.shapes import ELEMENT_BYTES
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
    found = fields(_PLAN)(document, "the plan")
    plan = MemoryPlan(
        buffers=tuple(Buffer(**each) for each in found["buffers"]),
        groups=tuple(_read_group(each) for each in found["groups"]),
        views={name: View(**each) for name, each in found["views"].items()},
        num_blocks=found["num_blocks"],
        aliases=found["aliases"],
        is_cross_layer=found["cross_layer"],
        why=found["why"],
        warnings=found["warnings"],
    )
    check_integrity(plan)
    again = to_json(plan)
    different = [name for name in again if again[name] != document[name]]
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


def _read_group(found: Mapping[str, Any]) -> PlannedGroup:
    return PlannedGroup(
        kind=SpecKind(found["kind"]),
        block_size=found["block_size"],
        layers=found["layers"],
        references=tuple(
            Reference(
                buffer=each["buffer"],
                block_stride=each["block_stride"],
                chunks=tuple(Chunk(**chunk) for chunk in each["chunks"]),
                is_whole=each["whole"],
            )
            for each in found["references"]
        ),
    )


def _reference(reference: Reference) -> dict[str, Any]:
    return {
        "buffer": reference.buffer,
        "block_stride": reference.block_stride,
        "whole": reference.is_whole,
        "chunks": [[getattr(chunk, name) for name in _CHUNK] for chunk in reference.chunks],
    }


def _view(view: View) -> dict[str, Any]:
    values = {name: getattr(view, name) for name in _VIEW}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


_SIZES: Final = all_of(or_none(number(1)))
_CHUNK: Final[Mapping[str, Reader]] = {
    "name": string,
    "offset": number(0),
    "length": number(1),
    "count": number(1),
    "stride": number(0),
    "heads_stride": number(0),
}
_VIEW: Final[Mapping[str, Reader]] = {
    "buffer": number(0),
    "shape": _SIZES,
    "stride": all_of(number(0)),
    "offset": number(0),
    "dtype": one_of(ELEMENT_BYTES),
    "blocks": number(0),
    "heads": or_none(number(0)),
    "tokens": or_none(number(0)),
    "kernel_blocks": number(1),
    "rows_per_block": number(1),
}
_BUFFER: Final[Mapping[str, Reader]] = {
    "block_bytes": number(1),
    "slots": number(1),
    "why": string,
    "axes": all_of(string),
    "shape": _SIZES,
    "start": or_none(number(0)),
}
_REFERENCE: Final[Mapping[str, Reader]] = {
    "buffer": number(0),
    "block_stride": number(1),
    "whole": flag,
    "chunks": all_of(row(_CHUNK)),
}
_GROUP: Final[Mapping[str, Reader]] = {
    "kind": one_of([kind.value for kind in SpecKind]),
    "block_size": number(1),
    "layers": all_of(layer_name),
    "used_bytes": number(0),
    "runs": all_of(all_of(number(0))),
    "references": all_of(fields(_REFERENCE)),
}
_PLAN: Final[Mapping[str, Reader]] = {
    "block_bytes": number(1),
    "num_blocks": or_none(number(1)),
    "fingerprint": string,
    "buffers": all_of(fields(_BUFFER)),
    "groups": all_of(fields(_GROUP)),
    "views": mapping(fields(_VIEW)),
    "aliases": mapping(string),
    "cross_layer": flag,
    "why": string,
    "warnings": all_of(string),
}
