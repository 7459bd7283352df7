"""What an engine's specs say about one layer's page: its kind, and its sizes.

    attention   heads x tokens x content of a token's head, in elements of one type
    state       one row of bytes: its tensors one after another

Invariant: a spec is known by its class's name, or by that of a class that it derives from; a spec
of unknown kind is refused. No engine is imported here: the names are those of vLLM 0.32.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError, LayoutError
from kvbraid.layout.engine.views import Foreign, require
from kvbraid.models.shapes import ELEMENT_BYTES, StateTensor
from kvbraid.spec import SpecKind

KINDS: Final[Mapping[str, SpecKind]] = {
    "FullAttentionSpec": SpecKind.FULL_ATTENTION,
    "MLAAttentionSpec": SpecKind.MLA_ATTENTION,
    "SinkFullAttentionSpec": SpecKind.SINK_FULL_ATTENTION,
    "SlidingWindowSpec": SpecKind.SLIDING_WINDOW,
    "SlidingWindowMLASpec": SpecKind.SLIDING_WINDOW_MLA,
    "ChunkedLocalAttentionSpec": SpecKind.CHUNKED_LOCAL_ATTENTION,
    "CrossAttentionSpec": SpecKind.CROSS_ATTENTION,
    "CircularBufferSpec": SpecKind.UNKNOWN,  # Inputs of entries still to be compressed.
    "MambaSpec": SpecKind.MAMBA,
}
"""The kind of a spec, by the name of its class."""

_STATE_FIELDS: Final = ("shapes", "dtypes")
_ATTENTION_FIELDS: Final = ("dtype", "num_heads", "num_states", "state_content_size_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """One layer's page; `tensors` are those of a state, whose page is a row of int8."""

    kind: SpecKind
    heads: int
    tokens: int
    content: int
    dtype: str
    tensors: tuple[StateTensor, ...] = ()


def layer_specs(group: Foreign) -> Mapping[str, Foreign]:
    """Return the spec of each layer that a group names."""
    spec = group.kv_cache_spec
    own = getattr(spec, "kv_cache_specs", None)
    return {name: spec if own is None else own.get(name, spec) for name in group.layer_names}


def group_kind(kinds: Collection[SpecKind]) -> SpecKind:
    """Return the kind of a group whose layers have these."""
    if len(set(kinds)) == 1:
        return next(iter(kinds))
    is_full = bool(kinds) and all(each.is_full for each in kinds)
    return SpecKind.FULL_ATTENTION if is_full else SpecKind.UNKNOWN


def read_page(name: str, spec: Foreign) -> EnginePage:
    """Read what a spec says about a layer's page.

    Raises:
        LayoutError: A spec of unknown kind, or sizes that no page can have.
    """
    classes = [each.__name__ for each in type(spec).__mro__]
    kind = next((KINDS[each] for each in classes if each in KINDS), None)
    if kind is None:
        raise LayoutError(
            f"layer {name}: a {classes[0]} is not known; expected one of {', '.join(KINDS)}, or "
            "a class that derives from one"
        )
    fields = _STATE_FIELDS if kind is SpecKind.MAMBA else _ATTENTION_FIELDS
    require(f"layer {name}: its spec", spec, fields, "from_engine reads that of vLLM 0.32")
    if kind is SpecKind.MAMBA:
        tensors = _state(name, spec)
        content = sum(tensor.size_bytes for tensor in tensors)
        return EnginePage(
            kind=kind, heads=1, tokens=1, content=content, dtype="int8", tensors=tensors
        )
    dtype, content_bytes = _dtype(spec.dtype), spec.state_content_size_bytes
    content, rest = divmod(content_bytes, ELEMENT_BYTES.get(dtype, content_bytes + 1))
    if rest:
        raise LayoutError(
            f"layer {name}: {content_bytes} bytes of a token's head are no whole number of "
            f"elements of type {dtype}; expected one of {', '.join(ELEMENT_BYTES)} that divides"
        )
    return EnginePage(
        kind=kind, heads=spec.num_heads, tokens=spec.num_states, content=content, dtype=dtype
    )


def _state(name: str, spec: Foreign) -> tuple[StateTensor, ...]:
    try:
        return tuple(
            StateTensor(name=each, dims=tuple(dims), dtype=_dtype(dtype))
            for each, dims, dtype in zip(
                _state_names(spec.shapes), spec.shapes, spec.dtypes, strict=True
            )
        )
    except ValueError as error:  # InvalidValueError is one.
        msg = f"layer {name}: {error}" if isinstance(error, InvalidValueError) else None
        msg = msg or f"layer {name}: {len(spec.shapes)} states, {len(spec.dtypes)} types of states"
        raise LayoutError(msg) from None


def _state_names(shapes: Sequence[Sequence[int]]) -> list[str]:
    """Name a state's tensors by their place; heads of matrices without a convolution are `ssm`."""
    if len(shapes) == 1:
        return ["ssm" if len(shapes[0]) > 2 else "conv"]  # Heads, rows, columns.
    return ["conv", "ssm", *(f"state_{index}" for index in range(2, len(shapes)))][: len(shapes)]


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
