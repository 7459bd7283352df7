"""What a plan is made from: layers with their pages and geometries, in groups.

Invariant: a layer's name is unique among the layers of its kind of cache, and the order of a
group's layers is the engine's: layer i stands in slot i. A layer that nobody can view is kept as a
page of bytes, with the reason. This module reads no config; `from_grouping` takes what
kvbraid.models formed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kvbraid.errors import InvalidValueError, LayoutError, shortened
from kvbraid.layout.planning.geometry import Geometry, Layout, geometry_of
from kvbraid.models.grouping import Grouping
from kvbraid.models.pages import CacheLayer, Page
from kvbraid.models.shapes import Heads, RecurrentState
from kvbraid.reading import SIZE, check
from kvbraid.spec import SpecKind


class Split(Enum):
    """How a block that is longer than the kernel's is cut into kernel blocks.

    INTERLEAVED: kernel block k of all layers is together, so a layer's page is in pieces.
    INTACT: a layer's page is in one piece, and block tables are scaled by `rows_per_block`.
    """

    INTERLEAVED = "interleaved"
    INTACT = "intact"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPage:
    """A page of a cache that this package does not know; `type_name` is its type's.

    Raises:
        InvalidValueError: A page without bytes.
    """

    type_name: str
    page_bytes: int

    def __post_init__(self) -> None:
        """Refuse a page without bytes."""
        check(f"bytes of a {self.type_name} page", self.page_bytes, SIZE)

    @property
    def content_bytes(self) -> int:
        """Bytes in use: all, as nobody knows better."""
        return self.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLayer:
    """One layer: its page, and how its backend views it.

    `geometry` is None for a state, for an unknown page, and where the backend could not be asked;
    `unprobed` then says why. `kernel_block` is the tokens of the kernel's block, None: the page's
    own. `alignment` is the bytes that the page's place and the block's stride are a multiple of.

    Raises:
        InvalidValueError: A name that is empty or no text, a size that is no whole number of at
            least 1, a dot in the name of a state's tensor, or a geometry of what keeps no keys
            and values.
    """

    name: str
    page: Page | UnknownPage
    geometry: Geometry | None = None
    kernel_block: int | None = None
    alignment: int = 1
    unprobed: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no engine has."""
        if not self.name or type(self.name) is not str:
            msg = f"a layer without a name ({shortened(self.name)})"
            raise InvalidValueError(f"{msg}; give each layer a text of its own")
        if self.page.page_bytes == 0:
            raise InvalidValueError(
                f"layer {self.name}: a page without bytes; leave the layer out, or name its owner"
            )
        for what in ("content_bytes", "page_bytes"):
            check(f"layer {self.name}: {what} of its page", getattr(self.page, what), SIZE)
        if self.state is not None and any("." in each.name for each in self.state.tensors):
            raise InvalidValueError(
                f"layer {self.name}: a tensor of its state has a dot in its name; leave it out, "
                "as views are named layer.tensor"
            )
        if self.geometry is not None and self.heads is None:
            raise InvalidValueError(
                f"layer {self.name}: a geometry, but no keys and values to be viewed by it; leave "
                "the geometry out"
            )
        check(f"layer {self.name}: alignment", self.alignment, SIZE)
        check(f"layer {self.name}: kernel_block", self.kernel_block, SIZE.or_none())

    @property
    def is_split(self) -> bool:
        """Whether the kernel's block is not the page's."""
        tokens = self.page.block_size if isinstance(self.page, Page) else None
        return self.geometry is not None and self.kernel_block not in (None, tokens)

    @property
    def view_names(self) -> tuple[str, ...]:
        """The names of the layer's views: its own, or one for each tensor of its state."""
        if self.state is None:
            return (self.name,)
        return tuple(f"{self.name}.{tensor.name}" for tensor in self.state.tensors)

    @property
    def state(self) -> RecurrentState | None:
        """The layer's state, if it keeps one."""
        shape = self.page.shape if isinstance(self.page, Page) else None
        return shape if isinstance(shape, RecurrentState) else None

    @property
    def heads(self) -> Heads | None:
        """The layer's heads, if it keeps keys and values."""
        shape = self.page.shape if isinstance(self.page, Page) else None
        return shape if isinstance(shape, Heads) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutGroup:
    """The layers that share one block table, in the engine's order.

    Raises:
        InvalidValueError: No layer, or blocks below 1 token.
    """

    kind: SpecKind
    block_size: int
    layers: tuple[LayoutLayer, ...]

    def __post_init__(self) -> None:
        """Refuse a group on which nothing could run."""
        if not self.layers:
            msg = f"a {self.kind.value} group without layers; leave the group out"
            raise InvalidValueError(msg)
        check(f"block_size of a {self.kind.value} group", self.block_size, SIZE)


def from_grouping(
    grouping: Grouping,
    *,
    layout: Layout = Layout.NHD,
    kernel_block: int | None = None,
    names: Mapping[int, str] | None = None,
) -> tuple[LayoutGroup, ...]:
    """Give each layer of a grouping the geometry that a layout has, and its number as its name.

    `kernel_block` splits attention blocks into kernel blocks of that many tokens. `names` gives
    layers other names. Where one number has two caches of keys and values, each is named with its
    kind, as `5.sliding_window`.

    Raises:
        InvalidValueError: A kernel block that is no whole number of at least 1.
        LayoutError: A kernel block without whole entries of a compressed cache, by its layer.
    """
    check("kernel_block", kernel_block, SIZE.or_none())
    doubled = _doubled(grouping)

    def named(layer: CacheLayer) -> str:
        name = (names or {}).get(layer.number, str(layer.number))
        return f"{name}.{layer.page.kind.value}" if layer.number in doubled else name

    return tuple(
        LayoutGroup(
            kind=group.kind,
            block_size=group.page.block_size,
            layers=tuple(_layer(each, named(each), layout, kernel_block) for each in group.layers),
        )
        for group in grouping.groups
    )


def _doubled(grouping: Grouping) -> set[int]:
    """The numbers under which two layers keep keys and values."""
    layers = (layer for group in grouping.groups for layer in group.layers)
    numbers = Counter(layer.number for layer in layers if isinstance(layer.page.shape, Heads))
    return {number for number, times in numbers.items() if times > 1}


def _layer(layer: CacheLayer, name: str, layout: Layout, kernel_block: int | None) -> LayoutLayer:
    page = layer.page
    if not isinstance(page.shape, Heads):
        return LayoutLayer(name=name, page=page)
    tokens = page.block_size if kernel_block is None else kernel_block
    if tokens % page.tokens_per_entry:
        raise LayoutError(
            f"layer {name}: kernel blocks of {tokens} tokens have no whole entries of "
            f"{page.tokens_per_entry} tokens; choose a kernel block that is a multiple"
        )
    return LayoutLayer(
        name=name,
        page=page,
        geometry=geometry_of(layout, page.shape, tokens // page.tokens_per_entry),
        kernel_block=kernel_block,
    )
