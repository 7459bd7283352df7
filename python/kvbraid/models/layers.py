"""The answer of this package: which layers of a model need which cache, and how large it is.

Frozen data; sizes are computed. Kind names are those of the wire. A size is that of one whole
layer; the layer's shape (shapes.py) says how tensor-parallel ranks divide it. grouping.py, and not
this module, decides which layers form a group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbraid.errors import InvalidValueError
from kvbraid.models.shapes import Shape
from kvbraid.reading import POSITIVE, check
from kvbraid.spec import SpecKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What one layer keeps: bytes per token, or one state of fixed size.

    `window` and `chunk` are in tokens, and None if the kind has none. Exactly one of
    `kv_bytes_per_token` and `state_bytes` is set. `shape` is None if the layer does not keep plain
    pages; `unpaged` then says what it keeps instead.
    """

    kind: SpecKind
    window: int | None = None
    chunk: int | None = None
    kv_bytes_per_token: int | None = None
    state_bytes: int | None = None
    shape: Shape | None = None
    unpaged: str | None = None

    def __post_init__(self) -> None:
        """Check that exactly one size is set."""
        assert (self.kv_bytes_per_token is None) != (self.state_bytes is None)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block of this layer; a recurrent state fills one block of any size."""
        check("block_size", block_size, POSITIVE)
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token * block_size
        assert self.state_bytes is not None
        return self.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLayers:
    """The layers (0-based, ascending) that share one `LayerSpec`."""

    spec: LayerSpec
    layers: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        """Flatten to the shape that `kvbraid model --json` prints."""
        return {
            "kind": self.spec.kind.value,
            "layers": list(self.layers),
            "window": self.spec.window,
            "chunk": self.spec.chunk,
            "kv_bytes_per_token": self.spec.kv_bytes_per_token,
            "state_bytes": self.spec.state_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """A model's layers by kind, kinds in the order in which engines register their layers.

    `model_type` is the type that decided the layers (the nested text model's, if there is one). A
    layer may be listed under two kinds (attention and state side by side) or under none
    (feed-forward only, or reading another layer's cache). `aliases` leads from each layer that
    reads another's cache to that other layer. `assumed` has the values that the config does not
    give and that were taken from the table of defaults.

    Raises:
        InvalidValueError: An alias of a layer that keeps no cache, or for one that does.
    """

    model_type: str
    num_layers: int
    kinds: tuple[KindLayers, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)
    assumed: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse aliases that are no other layer's cache."""
        owners = {number for kind in self.kinds for number in kind.layers}
        for reader, owner in self.aliases.items():
            if reader in owners or owner not in owners:
                raise InvalidValueError(
                    f"layer {reader} is said to read the cache of layer {owner}; expected a layer "
                    "without a cache to read one that has a cache"
                )

    def to_json(self) -> dict[str, object]:
        """Return the object that `kvbraid model --json` prints."""
        return {
            "model_type": self.model_type,
            "num_layers": self.num_layers,
            "kinds": [kind.to_json() for kind in self.kinds],
            "aliases": {str(reader): owner for reader, owner in self.aliases.items()},
            "assumed": dict(self.assumed),
        }


def runs(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers as runs: (0, 1, 2, 4) is "0-2, 4"."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in parts)
