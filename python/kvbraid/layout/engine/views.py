"""What an engine hands to a connector for one layer: a view over the one allocation.

A view is torch's tensor or numpy's array: only its numbers are read, never its elements, and this
module imports neither. Invariant: offsets and strides are in bytes, offsets from the allocation's
start.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvbraid.errors import LayoutError
from kvbraid.models.shapes import ELEMENT_BYTES

Foreign: TypeAlias = Any
"""An object of the engine's, of torch's or numpy's, which is read by its fields' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Where a view's elements are; `allocation` is the address at which its memory starts."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    allocation: int
    allocation_bytes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.dtype]


def require(what: str, thing: Foreign, names: Iterable[str], remedy: str) -> None:
    """Refuse an object that has not all of these fields.

    Raises:
        LayoutError: The first field that is missing.
    """
    missing = next((name for name in names if not hasattr(thing, name)), None)
    if missing is not None:
        raise LayoutError(f"{what} is a {type(thing).__name__} without {missing}; {remedy}")


def read_view(name: str, view: Foreign) -> EngineView:
    """Read a layer's view.

    Raises:
        LayoutError: No tensor or array, or elements of a type that no plan has.
    """
    remedy = "give the tensor that the engine registers for the layer"
    require(f"layer {name}: its view", view, ("shape", "dtype"), remedy)
    dtype = str(view.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_BYTES:
        msg = f"layer {name}: elements of type {dtype}; expected one of {', '.join(ELEMENT_BYTES)}"
        raise LayoutError(msg)
    if hasattr(view, "untyped_storage"):
        return _tensor(view, dtype)
    return _array(view, dtype)


def _tensor(view: Foreign, dtype: str) -> EngineView:
    size, storage = view.element_size(), view.untyped_storage()
    return EngineView(
        shape=tuple(view.shape),
        strides=tuple(each * size for each in view.stride()),
        offset=view.storage_offset() * size,
        dtype=dtype,
        allocation=storage.data_ptr(),
        allocation_bytes=storage.nbytes(),
    )


def _array(view: Foreign, dtype: str) -> EngineView:
    whole = view
    while hasattr(whole.base, "__array_interface__"):
        whole = whole.base
    start = whole.__array_interface__["data"][0]
    return EngineView(
        shape=tuple(view.shape),
        strides=tuple(view.strides),
        offset=view.__array_interface__["data"][0] - start,
        dtype=dtype,
        allocation=start,
        allocation_bytes=whole.nbytes,
    )
