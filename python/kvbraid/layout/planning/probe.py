"""What an attention backend says about a layer's shape and order: it is asked, nothing is guessed.

    get_kv_cache_shape          with sizes that nothing else has: where they come out, they mean
                                blocks, heads, tokens          (vLLM before its layout refactor)
    get_kv_cache_stride_order   the order in memory, of one layer and of all layers together
    supported_kv_cache_layouts  names of orders of [blocks, heads, tokens, content]  (vLLM 0.32)

Invariant: each size is found exactly once, or the probe fails. Whatever a backend raises is kept
as the reason. A backend that has no order at all stores its dimensions as they stand, which is how
its engine takes it. No engine is imported.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from operator import index
from typing import Any, Final, TypeAlias

from kvbraid.errors import InvalidValueError, LayoutError, one_line
from kvbraid.layout.planning.geometry import Geometry, Layout, geometry_of
from kvbraid.models.shapes import Heads

Backend: TypeAlias = Any
"""A backend's class, asked by the names of its methods."""

FIRST_SENTINEL: Final = 1_234
SENTINEL_BLOCKS: Final = 617
"""A sentinel of tokens is a multiple of the kernel's block, as backends refuse others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What came of asking, as a layer's `geometry` and `unprobed`.

    With a geometry and a reason, the backend has an order of one layer, and the reason is why it
    has none of all layers: `geometry.with_layers` is None.
    """

    geometry: Geometry | None = None
    reason: str | None = None


def probe_backend(
    backend: Backend, heads: Heads, kernel_block: int, *, cache_dtype: str | None = None
) -> Probe:
    """Ask a backend how it views a layer with these heads, in kernel blocks of so many tokens.

    `cache_dtype` is the engine's name of the cache's type, if the backend is to be told. A latent
    (a replicated key without a value) may have no dimension of heads.
    """
    try:
        shape, heads_at, tokens_at = _shape(backend, heads, kernel_block, cache_dtype)
        order = _order(backend, len(shape))
    except LayoutError as error:
        return Probe(reason=str(error))
    with_layers, reason = None, None
    try:
        with_layers = _order_with_layers(backend, len(shape) + 1)
    except LayoutError as error:
        reason = str(error)
    try:
        geometry = Geometry(
            shape=shape,
            dtype="uint8" if heads.scale_bytes else heads.dtype,
            order=order,
            with_layers=with_layers,
            heads=heads_at,
            tokens=tokens_at,
        )
    except InvalidValueError as error:
        return Probe(reason=f"get_kv_cache_shape gives no memory: {error}")
    return Probe(geometry=geometry, reason=reason)


def geometry_from_layouts(
    supported: Iterable[Any] | None, heads: Heads, kernel_block: int
) -> Geometry:
    """Return the geometry of a backend that says which layouts it supports, preferred first.

    `supported` is what `supported_kv_cache_layouts` returns: members of the engine's enum, or None
    for any. The first with blocks before all else is taken, so that blocks can run across layers,
    and the first of all if there is none.

    Raises:
        LayoutError: No layout, or one that is not known.
    """
    names = [Layout.BLNHC.name] if supported is None else [each.name for each in supported]
    packed = [each.name for each in Layout if "C" in each.name]
    unknown = [name for name in names if name not in packed]
    if unknown or not names:
        msg = f"supported layouts {names}; expected at least one, out of {', '.join(packed)}"
        raise LayoutError(msg)
    chosen = next((name for name in names if name.startswith("B")), names[0])
    return geometry_of(Layout[chosen], heads, kernel_block)


def _shape(
    backend: Backend, heads: Heads, kernel_block: int, cache_dtype: str | None
) -> tuple[tuple[int | None, ...], int | None, int | None]:
    """Return the logical shape with None for the blocks, and the dimensions of heads and tokens.

    Raises:
        LayoutError: The backend raised, or blocks or heads are not in its shape exactly once.
    """
    options = {} if cache_dtype is None else {"cache_dtype_str": cache_dtype}
    long_block = kernel_block * SENTINEL_BLOCKS
    given = {heads.num, heads.key_dim, heads.value_dim, kernel_block, long_block}
    unlike = (size for size in count(FIRST_SENTINEL) if size not in given)
    num_blocks, num_heads = next(unlike), next(unlike)

    def shape(tokens: int, num: int) -> tuple[int, ...]:
        sizes = (num_blocks, tokens, num, heads.key_dim)
        return _asked(backend, "get_kv_cache_shape", *sizes, **options)

    is_latent = heads.replicated and heads.value_dim == 0
    asked = shape(kernel_block, num_heads)
    blocks_at = _found("blocks", num_blocks, asked)
    heads_at = None
    if num_heads in asked or not is_latent:
        heads_at = _found("heads", num_heads, asked)
    real = shape(kernel_block, heads.num)
    expected = [heads.num if axis == heads_at else size for axis, size in enumerate(asked)]
    if list(real) != expected:
        raise LayoutError(
            f"get_kv_cache_shape gives {asked} for {num_heads} heads and {real} for {heads.num}; "
            "expected them to differ in the heads alone"
        )
    logical = tuple(None if axis == blocks_at else size for axis, size in enumerate(real))
    try:
        tokens_at = _found("tokens", long_block, shape(long_block, heads.num))
    except LayoutError:  # Nothing depends on it: a topology says that it is not known.
        tokens_at = None
    return logical, heads_at, tokens_at


def _found(what: str, sentinel: int, shape: tuple[int, ...]) -> int:
    """Return the one dimension with this size."""
    if shape.count(sentinel) != 1:
        raise LayoutError(
            f"get_kv_cache_shape gives {shape} for {sentinel} {what}; expected {sentinel} in it "
            f"exactly once, and it is there {shape.count(sentinel)} times"
        )
    return shape.index(sentinel)


def _order(backend: Backend, rank: int) -> tuple[int, ...]:
    """Return the order of one layer: that in which its dimensions stand, if the backend has none.

    Raises:
        LayoutError: No order of these dimensions, or the backend raised.
    """
    try:
        order = _asked(backend, "get_kv_cache_stride_order")
    except LayoutError as error:
        if isinstance(error.__cause__, (AttributeError, NotImplementedError)):
            return tuple(range(rank))
        raise
    return _permutation(order, rank)


def _order_with_layers(backend: Backend, rank: int) -> tuple[int, ...]:
    """Return the order of all layers together.

    Raises:
        LayoutError: No order of these dimensions, or the backend raised.
    """
    order = _asked(backend, "get_kv_cache_stride_order", include_num_layers_dimension=True)
    return _permutation(order, rank)


def _permutation(order: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if sorted(order) != list(range(rank)):
        msg = f"get_kv_cache_stride_order gives {order}; expected an order of {rank} dimensions"
        raise LayoutError(msg)
    return order


def _asked(backend: Backend, method: str, *sizes: int, **options: object) -> tuple[int, ...]:
    """Return what a backend answers; what it raises instead is the cause of the refusal."""
    try:
        return tuple(index(each) for each in getattr(backend, method)(*sizes, **options))
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}")
        raise LayoutError(f"{method} raised {text}") from error
