"""From a model to its groups: a config and an engine's options give the groups of each rank.

Invariant: a configuration that the engine would refuse at start-up is refused here, with the
layer, the rule and the remedy. Layers whose pages a config does not tell (index keys, compressed
entries) are refused too, and the message says so. This module reads no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.models.grouping import Grouping, form_groups, kept_in_full
from kvbraid.models.layers import KindLayers, ModelLayers, runs
from kvbraid.models.packing import packed_groups
from kvbraid.models.pages import CacheLayer, Page, covering_block
from kvbraid.models.read import engine_layers
from kvbraid.models.shapes import Heads, Shape
from kvbraid.reading import POSITIVE, check, check_fields

DEFAULT_BLOCK_SIZE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine is started, as far as it decides pages.

    `block_size` None: 16 tokens, or the kernel's block if 16 is not a multiple of that.
    `cache_dtype` None: keys and values keep the model's type.
    `state_dtype` None: the type that the config names, else the engine's for the architecture.
    `packed`: blocks are the outermost dimension, so pages may have several sizes (packing.py).
    `hybrid` False: the engine runs without its hybrid cache manager (vLLM's
    `--disable-hybrid-kv-cache-manager`), so windows and chunks are kept in full, in one group.

    Raises:
        InvalidValueError: A size below 1, or blocks that a kernel cannot read whole.
    """

    block_size: int | None = None
    kernel_block_size: int = 16
    num_ranks: int = 1
    cache_dtype: str | None = None
    state_dtype: str | None = None
    packed: bool = False
    hybrid: bool = True

    def __post_init__(self) -> None:
        """Refuse options that no engine starts with."""
        check("block_size", self.block_size, POSITIVE.or_none())
        check_fields(self, dict.fromkeys(("kernel_block_size", "num_ranks"), POSITIVE), prefix="")
        if self.block_size is not None and self.block_size % self.kernel_block_size:
            raise InvalidValueError(
                f"block_size = {self.block_size} tokens; expected a multiple of the kernel's "
                f"{self.kernel_block_size}, which reads whole blocks of its own"
            )

    @property
    def attention_block_size(self) -> int:
        """Tokens of an attention block, before states are considered."""
        if self.block_size is not None:
            return self.block_size
        return (
            self.kernel_block_size
            if DEFAULT_BLOCK_SIZE % self.kernel_block_size
            else (DEFAULT_BLOCK_SIZE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedModel:
    """A model's layers, the options they were grouped under, and the groups."""

    model: ModelLayers
    options: EngineOptions
    grouping: Grouping

    def to_json(self) -> dict[str, object]:
        """Return the object that `kvbraid model --groups --json` prints."""
        return {
            "model_type": self.model.model_type,
            "num_layers": self.model.num_layers,
            "num_ranks": self.options.num_ranks,
            "hybrid": self.options.hybrid,
            "groups": [group.to_json() for group in self.grouping.groups],
            "block_bytes": self.grouping.block_bytes,
            "padding_slots": self.grouping.padding_slots,
            "alignment": self.grouping.alignment,
            "hash_block_size": self.grouping.hash_block_size,
            "assumed": dict(self.model.assumed),
        }


def group_config(config: Mapping[str, object], options: EngineOptions) -> GroupedModel:
    """Group the layers of a `config.json`, already parsed.

    Raises:
        InvalidValueError: A config that cannot be read, or layers that ranks cannot divide.
        TopologyError: Layers that cannot be grouped, by name.
    """
    model = engine_layers(config, cache_dtype=options.cache_dtype, state_dtype=options.state_dtype)
    return GroupedModel(model=model, options=options, grouping=group_layers(model, options))


def group_layers(model: ModelLayers, options: EngineOptions) -> Grouping:
    """Group a model's layers, given in the order in which the engine registers them.

    Raises:
        InvalidValueError: Layers that ranks cannot divide.
        TopologyError: Layers that cannot be grouped, by name.
    """
    pages = [_page(kind, options) for kind in model.kinds]
    covered = _covering_states(model, pages, options)
    layers = tuple(_layers(model, covered))
    form = packed_groups if options.packed else form_groups
    return Grouping(groups=form(layers if options.hybrid else kept_in_full(layers)))


def _layers(model: ModelLayers, pages: Sequence[Page]) -> Iterator[CacheLayer]:
    """Yield all layers by kind, and those of one kind by number, however else they differ."""
    for wanted in dict.fromkeys(kind.spec.kind for kind in model.kinds):
        of_kind = [
            CacheLayer(number=number, page=page)
            for kind, page in zip(model.kinds, pages, strict=True)
            if kind.spec.kind is wanted
            for number in kind.layers
        ]
        yield from sorted(of_kind, key=lambda layer: layer.number)


def _page(kind: KindLayers, options: EngineOptions) -> Page:
    return Page(
        kind=kind.spec.kind,
        block_size=options.attention_block_size,
        shape=_shape_on_rank(kind, options.num_ranks),
        window=kind.spec.window,
        chunk=kind.spec.chunk,
    )


def _shape_on_rank(kind: KindLayers, num_ranks: int) -> Shape:
    if kind.spec.shape is None:
        raise TopologyError(
            f"{_named(kind)} keep {kind.spec.unpaged or 'bytes of unknown shape'}; a "
            "config does not say how an engine stores them, so give the layers and their pages to "
            "`packed_groups`; `kvbraid model` without --groups shows them"
        )
    try:
        return kind.spec.shape.on_rank(num_ranks)
    except InvalidValueError as error:
        raise InvalidValueError(f"{_named(kind)}: {error}") from None


def _covering_states(
    model: ModelLayers, pages: Sequence[Page], options: EngineOptions
) -> Sequence[Page]:
    """If a model has states and attention, lengthen blocks until a page holds a state, and pad.

    All layers get the same block size, states too.
    """
    states = [page for page in pages if not isinstance(page.shape, Heads)]
    attention = [page for page in pages if isinstance(page.shape, Heads)]
    if not states or not attention:
        return pages
    _refuse_unequal(model, pages)
    largest = max(page.content_bytes for page in states)
    block = covering_block(attention[0], largest, options.kernel_block_size)
    longer = [replace(page, block_size=block) for page in pages]
    wanted = max(page.content_bytes for page in longer)
    return [
        page if page.content_bytes == wanted else replace(page, padded_bytes=wanted)
        for page in longer
    ]


def _refuse_unequal(model: ModelLayers, pages: Sequence[Page]) -> None:
    sizes = {
        page.content_bytes: kind
        for kind, page in zip(model.kinds, pages, strict=True)
        if isinstance(page.shape, Heads)
    }
    if len(sizes) > 1:
        listed = "; ".join(f"{_named(kind)} {size:,} bytes" for size, kind in sizes.items())
        raise TopologyError(
            f"attention pages of several sizes beside states: {listed}; the engine fits one "
            "attention page to a state, so give these layers equal heads"
        )


def _named(kind: KindLayers) -> str:
    return f"layers {runs(kind.layers)} ({kind.spec.kind.value})"
