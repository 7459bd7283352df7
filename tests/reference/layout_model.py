"""Views by selecting and permuting: bytes, to elements, to the physical shape, to the logical one.

    bytes of a buffer -> rows of kernel blocks -> elements -> (blocks, heads, layers, ...)
                      -> select a layer -> permute

Nothing here multiplies a stride: numpy finds them.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from kvbraid.layout import Geometry
from kvbraid.models.shapes import ELEMENT_BYTES, StateTensor

from tests.reference.layout_arrays import ELEMENTS, Bytes, Elements


def kernel_bytes(geometry: Geometry) -> int:
    """Bytes of one kernel block."""
    return prod(each or 1 for each in geometry.shape) * ELEMENT_BYTES[geometry.dtype]


def permuted(array: Elements, order: Sequence[int]) -> Elements:
    """Return an array whose dimension `order[i]` is dimension i of this one."""
    return array.transpose([list(order).index(each) for each in range(len(order))])


def elements_of(rows: Bytes, dtype: str, sizes: Sequence[int]) -> Elements:
    """Take rows of bytes for elements with these dimensions."""
    elements: Elements = rows.view(ELEMENTS[ELEMENT_BYTES[dtype]])
    return elements.reshape([len(rows), *sizes])


def among_layers(rows: Bytes, geometry: Geometry, slot: int, num_slots: int) -> Elements:
    """One of all layers, in their backend's order, in rows of one kernel block of all layers."""
    sizes = [num_slots, *(each or len(rows) for each in geometry.shape)]
    order = geometry.layer_order
    content = rows[:, : num_slots * kernel_bytes(geometry)]
    physical = elements_of(content, geometry.dtype, [sizes[each] for each in order[1:]])
    selected: Elements = permuted(physical, order)[slot]
    return selected


def in_a_page(rows: Bytes, geometry: Geometry) -> Elements:
    """One layer in rows of one kernel block: blocks first, the rest in their backend's order."""
    inside = [each - 1 for each in geometry.layer_order if each not in (0, geometry.blocks + 1)]
    if geometry.layer_order[0] != geometry.blocks + 1:
        inside = [each for each in geometry.order if each != geometry.blocks]
    sizes = [geometry.shape[each] or 1 for each in inside]
    return permuted(elements_of(rows, geometry.dtype, sizes), [geometry.blocks, *inside])


def of_one_layer(memory: Bytes, geometry: Geometry) -> Elements:
    """One layer alone in a buffer, in the order that its backend has without others."""
    rows = len(memory) // kernel_bytes(geometry)
    sizes = [each or rows for each in geometry.shape]
    content = memory[: rows * kernel_bytes(geometry)]
    elements: Elements = content.view(ELEMENTS[ELEMENT_BYTES[geometry.dtype]])
    return permuted(elements.reshape([sizes[each] for each in geometry.order]), geometry.order)


def of_state(pages: Bytes, tensors: Sequence[StateTensor], index: int) -> Elements:
    """One tensor of a state, in rows of pages."""
    before = sum(tensor.size_bytes for tensor in tensors[:index])
    mine = tensors[index]
    return elements_of(pages[:, before : before + mine.size_bytes], mine.dtype, mine.dims)


def same_place(first: Elements, second: Elements) -> bool:
    """Whether two arrays are the same elements of one memory."""

    def place(array: Elements) -> object:
        steps = [
            (size, stride if size > 1 else 0)
            for size, stride in zip(array.shape, array.strides, strict=True)
        ]
        return array.__array_interface__["data"][0], array.dtype, steps

    return place(first) == place(second) and np.shares_memory(first, second)
