"""Give a pool to a connector, in the best form that the plan and the connector both support.

    connector takes                  plan                              it gets
    HYBRID                           any                               REFERENCES
    CROSS_LAYER (older interface)    one group, one even tensor        ONE_TENSOR
    CROSS_LAYER                      any other                         VIEWS, with the reason
    PER_LAYER                        any                               VIEWS

Invariant: the form is decided from the plan alone, before any tensor is touched, and carries its
reason. Tensors are whatever the caller has: this module needs neither torch nor numpy, and it
copies nothing.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from kvbraid.errors import LayoutError
from kvbraid.layout.plan import Buffer, MemoryPlan, View
from kvbraid.layout.planning.cross_layer import ConnectorForm
from kvbraid.models.shapes import ELEMENT_BYTES

if TYPE_CHECKING:
    from kvbraid.layout.descriptors import Descriptors, How


class PoolForm(Enum):
    """In what form a connector gets a pool."""

    REFERENCES = "buffers, and references per group"
    ONE_TENSOR = "one tensor of all layers"
    VIEWS = "a view per layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The form in which a connector gets a pool, and why not a better one."""

    form: PoolForm
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferDimensions:
    """Which physical dimension of a buffer is which; None: the buffer has no such dimension.

    A dimension that is there but stays inside a page (the heads of most layouts) is None too: the
    buffer's layers may disagree about it.
    """

    blocks: int
    layers: int | None
    heads: int | None
    tokens: int | None

    @classmethod
    def of(cls, buffer: Buffer) -> "BufferDimensions":
        """Return the dimensions of a buffer."""
        return cls(
            blocks=buffer.axes.index("blocks"),
            layers=buffer.axis("layers"),
            heads=buffer.axis("heads"),
            tokens=buffer.axis("tokens"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossLayerView:
    """All layers of a group as one tensor, in physical order, blocks first.

    `axes` names the dimensions as `Buffer.axes` does, without the bytes at the end.
    """

    view: View
    axes: tuple[str, ...]


class Pool(Protocol):
    """The tensors of a plan, whoever allocated them: `kvbraid.layout.tensors.Tensors` is one."""

    @property
    def bases(self) -> Sequence[int]:
        """The address of each buffer."""

    @property
    def views(self) -> Mapping[str, Any]:
        """The tensor of each view, and of each layer that reads another's cache."""

    def strided(self, view: View) -> Any:  # noqa: ANN401 - a tensor of whatever library it is.
        """Return the tensor that a view describes."""


class Connector(Protocol):
    """What moves blocks: it says what it takes, and gets a pool once."""

    @property
    def takes(self) -> ConnectorForm:
        """What it can take; `plan_memory` makes a plan for it with the same value."""

    def register(self, plan: MemoryPlan, tensors: Pool) -> None:
        """Take the pool, in the form that `registration(plan, self.takes)` names."""


def register(plan: MemoryPlan, tensors: Pool, connector: Connector) -> Registration:
    """Give a connector the pool, and return in what form it got it.

    Raises:
        LayoutError: The connector cannot take the plan in any form.
    """
    connector.register(plan, tensors)
    return registration(plan, connector.takes)


def registration(plan: MemoryPlan, takes: ConnectorForm) -> Registration:
    """Return the best form in which a connector can get this plan's pool."""
    return _FORMS[takes](plan)


def _references(plan: MemoryPlan) -> Registration:
    return Registration(form=PoolForm.REFERENCES, why=plan.why)


def _one_tensor(plan: MemoryPlan) -> Registration:
    reason = why_apart(plan)
    if reason is None:
        return Registration(
            form=PoolForm.ONE_TENSOR, why="one group, and its layers are one tensor"
        )
    why = f"the connector takes whole blocks of one group, but {reason}; it gets a view per layer"
    return Registration(form=PoolForm.VIEWS, why=why)


def _views(plan: MemoryPlan) -> Registration:
    del plan
    return Registration(
        form=PoolForm.VIEWS, why="the connector takes a view per layer, not blocks"
    )


_FORMS: Final[Mapping[ConnectorForm, Callable[[MemoryPlan], Registration]]] = {
    ConnectorForm.HYBRID: _references,
    ConnectorForm.CROSS_LAYER: _one_tensor,
    ConnectorForm.PER_LAYER: _views,
}


def why_apart(plan: MemoryPlan) -> str | None:
    """Return why the layers of a plan are not one tensor, or None if they are."""
    views = _by_place(plan)
    first = views[0]
    like = {replace(view, offset=0, buffer=0) for view in views}
    if len(plan.groups) > 1:
        return f"the plan has {len(plan.groups)} groups, so nothing hybrid can be one tensor"
    if not plan.is_cross_layer:
        return f"blocks do not run across layers ({plan.why})"
    if len(plan.buffers) > 1:
        return f"its layers are in {len(plan.buffers)} buffers"
    if len(like) > 1:
        return "its layers have several geometries"
    if first.tokens is None:
        return "its layers keep no keys and values"
    if first.kernel_blocks > 1:
        return "its blocks are cut into kernel blocks"
    if len(_steps(views)) > 1:
        return "its layers are not evenly spaced"
    return None


def cross_layer_view(plan: MemoryPlan) -> CrossLayerView:
    """Return all layers of a plan of one group as one view.

    Raises:
        LayoutError: The layers are not one tensor, with the reason.
    """
    reason = why_apart(plan)
    if reason is not None:
        raise LayoutError(f"no one tensor has all layers: {reason}; register a view per layer")
    views = _by_place(plan)
    first = views[0]
    block = (first.stride[first.blocks], "blocks", first.shape[first.blocks])
    # A single layer has no step: its dimension, of size 1, comes right after the blocks.
    layers = (next(iter(_steps(views)), block[0]), "layers", len(views))
    names = {first.heads: "heads", first.tokens: "tokens"}
    inside = [
        (stride, names.get(dimension, f"dimension {dimension}"), size)
        for dimension, (size, stride) in enumerate(zip(first.shape, first.stride, strict=True))
        if dimension != first.blocks
    ]
    found = sorted([block, layers, *inside], key=lambda each: -each[0])
    axes = tuple(name for _, name, _ in found)
    view = replace(
        first,
        shape=tuple(size for _, _, size in found),
        stride=tuple(stride for stride, _, _ in found),
        blocks=axes.index("blocks"),
        heads=None if first.heads is None else axes.index("heads"),
        tokens=axes.index("tokens"),
    )
    return CrossLayerView(view=view, axes=axes)


def _by_place(plan: MemoryPlan) -> list[View]:
    """Return the views as they lie in memory: a plan that was read may have any order of names."""
    return sorted(plan.views.values(), key=lambda view: (view.buffer, view.offset))


def _steps(views: Sequence[View]) -> set[int]:
    """Return the distances in elements from one layer to the next."""
    size = ELEMENT_BYTES[views[0].dtype]
    return {(after.offset - before.offset) // size for before, after in pairwise(views)}


def by_layer(plan: MemoryPlan, views: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each layer has: a tensor, or the list of a state's tensors in their order.

    Layers that read another's cache have what it has.

    Raises:
        LayoutError: Two layers of one name, as a number stands for its attention and its state.
    """
    found: dict[str, Any] = {}
    for group in plan.groups:
        mine: dict[str, Any] = {}
        for name, layer in group.layers_of_views().items():
            if name == layer:
                mine[layer] = views[name]
            else:
                mine.setdefault(layer, []).append(views[name])
        _refuse_doubled(found.keys() & mine.keys())
        found |= mine
    _refuse_doubled(found.keys() & plan.aliases.keys())
    return found | {alias: found[owner] for alias, owner in plan.aliases.items()}


def _refuse_doubled(layers: Set[str]) -> None:
    for layer in sorted(layers):
        raise LayoutError(
            f"layer {layer} has a cache of keys and values and a state, and a view per "
            "layer needs one name for each; name layers as the engine does"
        )


class LayerViews:
    """Gives an engine's connector its dictionary of views, as vLLM's `register_kv_caches` does."""

    takes: Final = ConnectorForm.PER_LAYER

    def __init__(self, register_kv_caches: Callable[[dict[str, Any]], object]) -> None:
        self._register = register_kv_caches

    def register(self, plan: MemoryPlan, tensors: Pool) -> None:
        """Pass a tensor per layer, a list of tensors for a state.

        Raises:
            LayoutError: Two layers of one name.
        """
        self._register(by_layer(plan, tensors.views))


class OneTensor:
    """Gives a connector of the older interface its one tensor, with the names of its axes.

    vLLM called it `register_cross_layers_kv_cache`. Where the plan has no such tensor, the
    connector gets a view per layer through `register_kv_caches`, if it has that.
    """

    takes: Final = ConnectorForm.CROSS_LAYER

    def __init__(
        self,
        register_cross_layers: Callable[[Any, tuple[str, ...]], object],
        register_kv_caches: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self._register = register_cross_layers
        self._register_views = register_kv_caches

    def register(self, plan: MemoryPlan, tensors: Pool) -> None:
        """Pass the tensor of all layers, or a tensor per layer.

        Raises:
            LayoutError: The plan has no such tensor, and the connector takes nothing else.
        """
        chosen = registration(plan, self.takes)
        if chosen.form is PoolForm.ONE_TENSOR:
            whole = cross_layer_view(plan)
            self._register(tensors.strided(whole.view), whole.axes)
        elif self._register_views is not None:
            self._register_views(by_layer(plan, tensors.views))
        else:
            msg = f"{chosen.why}, and takes none; give it register_kv_caches, or one group"
            raise LayoutError(msg)


class BlockDescriptors:
    """Gives a transfer library the descriptors of all blocks, as arrays (needs numpy).

    `register_memory` gets them once: `regions` to register, `all_blocks` to prepare lists from,
    and `chunks` or `strided` for each transfer.
    """

    takes: Final = ConnectorForm.HYBRID

    def __init__(
        self,
        register_memory: Callable[["Descriptors"], object],
        *,
        how: "How" = "exact",
        device: int = 0,
    ) -> None:
        self._register = register_memory
        self._how: How = how
        self._device = device

    def register(self, plan: MemoryPlan, tensors: Pool) -> None:
        """Pass the descriptors of the pool.

        Raises:
            LayoutError: `whole` of a block whose bytes are not together, with its layer.
        """
        from kvbraid.layout.descriptors import Descriptors

        self._register(Descriptors(plan, bases=tensors.bases, how=self._how, device=self._device))
