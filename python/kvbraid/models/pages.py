"""Pages: the memory of one layer's block on one rank, and how all layers get one page size.

    attention   page = tokens of a block x bytes of a token      grows with the block
    state       page = one state                                 the same for any block

Invariant: layers of several groups share one pool, so all their pages get the same size. In a
model with states, attention blocks are first made so long that a page can hold a state
(`covering_block`). Then every page gets the size of the largest one: an attention page by a block
that is longer by a whole ratio, any other page by padding (`unified`). The rules are those of vLLM
0.32 with a layer-outer layout (`Platform._align_hybrid_block_size`,
`unify_kv_cache_spec_page_size`). Where blocks come before layers, pages may keep several sizes
instead: packing.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvbraid.errors import TopologyError
from kvbraid.models.shapes import Heads, Shape
from kvbraid.spec import SpecKind

MLA_BLOCK_TOKENS = 128  # Decode kernels for latents need whole multiples of it in state models.


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One block of one layer on one rank; layers with equal pages may share a group.

    A compressed cache keeps one entry of `shape` for `tokens_per_entry` tokens.

    Raises:
        TopologyError: Padding to less than the content, or a block of no whole entries.
    """

    kind: SpecKind
    block_size: int
    shape: Shape
    window: int | None = None
    chunk: int | None = None
    padded_bytes: int | None = None
    tokens_per_entry: int = 1

    def __post_init__(self) -> None:
        """Refuse a page that cannot hold its content."""
        if self.tokens_per_entry < 1 or self.block_size % self.tokens_per_entry:
            raise TopologyError(
                f"a {self.kind.value} block of {self.block_size} tokens has no whole entries of "
                f"{self.tokens_per_entry} tokens; choose a block size that is a multiple"
            )
        if self.page_bytes < self.content_bytes:
            raise TopologyError(
                f"a {self.kind.value} page of {self.page_bytes:,} bytes cannot hold "
                f"{self.content_bytes:,}; pad to at least that"
            )

    @property
    def content_bytes(self) -> int:
        """Bytes in use."""
        if isinstance(self.shape, Heads):
            return self.block_size // self.tokens_per_entry * self.shape.bytes_per_token
        return self.shape.size_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes from the start of one page of the layer to the start of the next."""
        return self.content_bytes if self.padded_bytes is None else self.padded_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayer:
    """One layer's page; `number` is the layer's place in the model (0-based)."""

    number: int
    page: Page

    def __str__(self) -> str:
        """Name the layer as messages do."""
        return f"layer {self.number} ({self.page.kind.value})"


def covering_block(attention: Page, state_bytes: int, kernel_block: int) -> int:
    """Return the tokens of an attention block whose page holds a state of `state_bytes`.

    A multiple of the block asked for (`attention.block_size`), of the kernel's block, and of 128
    for latents; never less than the block asked for.
    """
    assert isinstance(attention.shape, Heads)  # A state has no bytes per token.
    step = max(kernel_block, attention.block_size)
    if attention.kind is SpecKind.MLA_ATTENTION:
        step = max(step, MLA_BLOCK_TOKENS)
    tokens = step * -(-state_bytes // (step * attention.shape.bytes_per_token))
    return max(attention.block_size, kernel_block * -(-tokens // kernel_block))


def unified(layers: Sequence[CacheLayer]) -> tuple[CacheLayer, ...]:
    """Give all layers the largest page size: by longer blocks if it divides, else by padding.

    Raises:
        TopologyError: A page of latents that neither divides the largest nor may be padded.
    """
    largest = max(layers, key=lambda layer: layer.page.page_bytes)
    return tuple(_enlarged(layer, largest) for layer in layers)


def _enlarged(layer: CacheLayer, largest: CacheLayer) -> CacheLayer:
    page, wanted = layer.page, largest.page.page_bytes
    if page.page_bytes == wanted:
        return layer
    ratio, rest = divmod(wanted, page.page_bytes)
    if page.kind is SpecKind.MAMBA or (rest and page.kind is not SpecKind.MLA_ATTENTION):
        return replace(layer, page=replace(page, padded_bytes=wanted))
    if rest:
        raise TopologyError(
            f"{layer} has pages of {page.page_bytes:,} bytes, which do not divide the "
            f"{wanted:,} of {largest}, and pages of latents cannot be padded; choose a block "
            "size or a cache type that makes one divide the other, or a layout that packs "
            "pages of several sizes"
        )
    return replace(layer, page=replace(page, block_size=page.block_size * ratio))
