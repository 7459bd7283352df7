"""The tensors of a plan: one allocation, and every view cut from it by `as_strided`.

    allocate(plan, device)   memory of our own      -> buffers (int8, blocks x bytes)
    adopt(plan, views)       an engine's memory     -> views   (shape, stride, offset of a View)

Invariant: the plan alone says where a tensor lies; nothing here computes a place. Views share the
allocation's storage and keep it alive. This module needs torch (extra `torch`), never the native
core, and moves no bytes.
"""

from collections.abc import Mapping
from typing import Final

from kvbraid.errors import LayoutError
from kvbraid.extras import require
from kvbraid.layout.plan import BASE_ALIGNMENT, MemoryPlan, View
from kvbraid.models.shapes import ELEMENT_BYTES

require("torch", "kvbraid.layout.tensors", "torch")

import torch  # noqa: E402 - the line before it names the extra if torch is missing.

DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, name) for name in ELEMENT_BYTES}
"""Each element type of a plan as torch's."""


class Tensors:
    """A plan's pool: `memory`, `buffers` and `views`, all of one storage.

    `memory` is the allocation as int8. A buffer is int8 as well, (number of blocks, bytes of a
    block), flat where a block is in pieces. `views` has each view by its name, and each layer that
    reads another's cache by its own.
    """

    def __init__(self, plan: MemoryPlan, memory: torch.Tensor) -> None:
        self.plan: Final = plan
        self.memory: Final = memory
        self.buffers: Final = tuple(self._buffer(index) for index in range(len(plan.buffers)))
        views = {name: self.strided(view) for name, view in plan.views.items()}
        self.views: Final[Mapping[str, torch.Tensor]] = views | {
            alias: views[owner] for alias, owner in plan.aliases.items()
        }

    @property
    def bases(self) -> list[int]:
        """The address of each buffer, as descriptors take them."""
        return [buffer.data_ptr() for buffer in self.buffers]

    def strided(self, view: View) -> torch.Tensor:
        """Return the tensor that a view of the plan's buffers describes."""
        start, dtype = self.plan.buffers[view.buffer].start or 0, DTYPES[view.dtype]
        size = dtype.itemsize
        typed = self.memory[: self.memory.numel() // size * size].view(dtype)
        offset = typed.storage_offset() + (start + view.offset) // size
        return typed.as_strided(view.shape, view.stride, offset)

    def _buffer(self, index: int) -> torch.Tensor:
        buffer = self.plan.buffers[index]
        start, num_blocks = buffer.start or 0, self.plan.num_blocks
        assert num_blocks is not None  # A plan without it has no size to allocate.
        flat = self.memory[start : start + num_blocks * buffer.block_bytes]
        return flat if buffer.axis("pieces") is not None else flat.view(num_blocks, -1)


def allocate(
    plan: MemoryPlan, device: torch.device | str = "cpu", *, zero: bool = False
) -> Tensors:
    """Allocate a plan's memory; `zero` fills it with zeros, otherwise it has what was there.

    The memory starts at a multiple of 512 bytes.

    Raises:
        InvalidValueError: A plan without a number of blocks.
    """
    new = torch.zeros if zero else torch.empty
    size_bytes = -(-plan.size_bytes // BASE_ALIGNMENT) * BASE_ALIGNMENT
    memory = new(size_bytes + BASE_ALIGNMENT, dtype=torch.int8, device=device)
    begin = -memory.data_ptr() % BASE_ALIGNMENT
    return Tensors(plan, memory[begin : begin + size_bytes])


def adopt(plan: MemoryPlan, views: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the tensors of memory that an engine allocated, from the views that it registers.

    `plan` is `kvbraid.layout.from_engine` of the same views, which checked that all are in one
    allocation.

    Raises:
        LayoutError: No views.
    """
    if not views:
        msg = "no views, so there is no memory to adopt; give those that the engine registers"
        raise LayoutError(msg)
    storage = next(iter(views.values())).untyped_storage()
    memory = torch.empty(0, dtype=torch.int8, device=storage.device)
    return Tensors(plan, memory.set_(storage))
