"""Shapes of what one layer keeps, and how tensor-parallel ranks divide them.

Law: a rank holds whole heads. Heads are divided evenly; if there are fewer heads than ranks, they
are replicated if an engine does so (attention, and a single Mamba-2 group), and else refused.
The rules are those of vLLM 0.32 (`max(1, kv_heads // tp)` and `MambaStateShapeCalculator`).
Shapes are compared: layers of unequal shape never share a group's page.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from kvbraid.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Keys and values of one token: per head, a key and a value vector of these sizes.

    `value_dim` is 0 if one latent vector serves as both; it is then `replicated`: the same on
    every rank.
    """

    num: int
    key_dim: int
    value_dim: int
    element_bytes: int
    replicated: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes."""
        return self.num * (self.key_dim + self.value_dim) * self.element_bytes

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
    """One part of a recurrent state: `num` heads (or channels, or groups) of equal size.

    A single one may be replicated if `replicable` says so; otherwise the ranks divide them.
    """

    what: str
    num: int
    elements: int
    element_bytes: int
    replicable: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the part."""
        return self.num * self.elements * self.element_bytes

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
class State:
    """A recurrent state: all its parts, kept side by side in one page."""

    parts: tuple[StatePart, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of one state."""
        return sum(part.size_bytes for part in self.parts)

    def on_rank(self, ranks: int) -> "State":
        """Return what each of `ranks` ranks holds.

        Raises:
            InvalidValueError: A part that does not divide evenly among ranks.
        """
        return State(parts=tuple(part.on_rank(ranks) for part in self.parts))


Shape: TypeAlias = Heads | State


def uneven(what: str, ranks: int) -> InvalidValueError:
    """Return the refusal of heads that cannot be distributed evenly."""
    return InvalidValueError(
        f"{what} cannot be divided evenly among {ranks} tensor-parallel ranks; choose a size "
        "that divides them"
    )
