"""Shapes of what one layer keeps, and how tensor-parallel ranks divide them.

Invariant: a rank holds whole heads. Heads are divided evenly; if there are fewer heads than ranks,
they are replicated if an engine does so (attention, and a single Mamba-2 group), and else refused.
The rules are those of vLLM 0.32 (`max(1, kv_heads // tp)` and `MambaStateShapeCalculator`). Shapes
are compared: layers of unequal shape never share a group's page. A shape has no place in memory:
it never says where a page begins, or in which order heads and tokens lie in one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeAlias

from kvbraid.errors import InvalidValueError
from kvbraid.reading import check, one_of

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Keys and values of one token: per head, a key and a value vector of these sizes.

    `value_dim` is 0 if one latent vector serves as both; it is then `replicated`: the same on
    every rank. `scale_bytes` are the scales of a head's quantized key and value, kept beside them;
    a page with scales is read as uint8.

    Raises:
        InvalidValueError: A type that is not in `ELEMENT_BYTES`.
    """

    num: int
    key_dim: int
    value_dim: int
    dtype: str
    scale_bytes: int = 0
    replicated: bool = False

    def __post_init__(self) -> None:
        """Refuse elements of unknown size."""
        _check_dtype("heads", self.dtype)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of a key or value."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes."""
        elements = self.key_dim + self.value_dim
        return self.num * (elements * self.element_bytes + self.scale_bytes)

    def on_rank(self, ranks: int) -> "Heads":
        """Return the part that each of `ranks` ranks holds.

        Raises:
            InvalidValueError: Heads that do not divide evenly among ranks, or ranks among heads.
        """
        if self.replicated:
            return self
        if max(self.num, ranks) % min(self.num, ranks):
            raise uneven(f"{self.num} key-value heads", ranks)
        return replace(self, num=max(1, self.num // ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """`num` heads (or channels, or groups), each `width` elements long in a tensor's dimension.

    A single one may be replicated if `replicable` says so; otherwise the ranks divide them.
    """

    what: str
    num: int
    width: int = 1
    replicable: bool = False

    def on_rank(self, ranks: int) -> "StatePart":
        """Return what each of `ranks` ranks holds.

        Raises:
            InvalidValueError: Parts that do not divide evenly among ranks.
        """
        if self.num == 1 and self.replicable:
            return self
        if self.num % ranks:
            raise uneven(f"{self.num} {self.what}", ranks)
        return replace(self, num=self.num // ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a recurrent state; ranks divide the `parts` that make up dimension `axis`.

    A tensor without parts is known on one rank only.

    Raises:
        InvalidValueError: A dimension below 1, an unknown type, or parts that are not the axis.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str
    axis: int = 0
    parts: tuple[StatePart, ...] = ()

    def __post_init__(self) -> None:
        """Refuse dimensions, a type or parts that cannot be."""
        _check_dtype(self.name, self.dtype)
        if not self.dims or min(self.dims) < 1:
            msg = f"the state tensor {self.name} has dimensions {self.dims}; expected at least 1"
            raise InvalidValueError(msg)
        if self.parts and self.dims[self.axis] != _length(self.parts):
            raise InvalidValueError(
                f"the state tensor {self.name} has dimensions {self.dims}, but its parts take "
                f"{_length(self.parts)} in dimension {self.axis}; the two must be equal"
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.dims) * ELEMENT_BYTES[self.dtype]

    def on_rank(self, ranks: int) -> "StateTensor":
        """Return what each of `ranks` ranks holds.

        Raises:
            InvalidValueError: Parts that do not divide evenly among ranks, or are not known.
        """
        if ranks == 1:
            return self
        if not self.parts:
            msg = f"the state tensor {self.name} does not say which parts {ranks} ranks divide"
            raise InvalidValueError(f"{msg}; give its parts, or its dimensions on one rank")
        parts = tuple(part.on_rank(ranks) for part in self.parts)
        dims = (*self.dims[: self.axis], _length(parts), *self.dims[self.axis + 1 :])
        return replace(self, dims=dims, parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """A recurrent state: its tensors, one after the other in one page, convolution first.

    They are named `conv`, `ssm`, and `state_<i>` from the third on.
    """

    tensors: tuple[StateTensor, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of one state."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def on_rank(self, ranks: int) -> "RecurrentState":
        """Return what each of `ranks` ranks holds.

        Raises:
            InvalidValueError: A tensor that does not divide evenly among ranks.
        """
        return RecurrentState(tensors=tuple(tensor.on_rank(ranks) for tensor in self.tensors))


Shape: TypeAlias = Heads | RecurrentState


def uneven(what: str, ranks: int) -> InvalidValueError:
    """Return the refusal of heads that cannot be distributed evenly."""
    return InvalidValueError(
        f"{what} cannot be divided evenly among {ranks} tensor-parallel ranks; choose a size "
        "that divides them"
    )


def _length(parts: tuple[StatePart, ...]) -> int:
    return sum(part.num * part.width for part in parts)


def _check_dtype(what: str, dtype: str) -> None:
    check(f"the type of {what}", dtype, one_of(ELEMENT_BYTES))
