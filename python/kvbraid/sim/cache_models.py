"""Published models as a cache sees them: groups, block sizes, and the bytes of one block.

Frozen data. The groups are those that vLLM 0.32 forms at its defaults, on one rank: blocks of 16
tokens, states in the model's type (bfloat16), attention blocks lengthened until a page holds a
state, layer-outer layout. Bytes per token and states are those of `kvbraid model` on the config
that `source` names (tests/fixtures/models); a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvbraid.errors import UnknownError
from kvbraid.spec import GroupSpec, SpecKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheModel:
    """One model's cache.

    Attributes:
        name: As `--model` takes it.
        source: The fixture in tests/fixtures/models that the sizes are derived from.
        groups: In the engine's order; all have one block size.
        page_bytes: One layer's part of a block: the larger of KV and state.
        layers_per_block: Places for layers in a block; smaller groups leave some empty.
    """

    name: str
    source: str
    groups: tuple[GroupSpec, ...]
    page_bytes: int
    layers_per_block: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool, which any group can use."""
        return self.page_bytes * self.layers_per_block

    @property
    def topology(self) -> Topology:
        """The groups under the pure rule; none of them is one that an engine treats otherwise."""
        return Topology(groups=self.groups)

    @property
    def alignment(self) -> int:
        """Tokens at which all groups have a block boundary; also what hashes are given for."""
        return self.groups[0].block_size

    def num_blocks(self, memory_bytes: int) -> int:
        """Return the blocks that so much memory holds."""
        return memory_bytes // self.block_bytes


def _groups(
    kind: SpecKind, block_size: int, *, number: int = 1, window: int | None = None
) -> tuple[GroupSpec, ...]:
    return (GroupSpec(kind=kind, block_size=block_size, window=window),) * number


_FULL: Final = SpecKind.FULL_ATTENTION
_WINDOW: Final = SpecKind.SLIDING_WINDOW
_STATE: Final = SpecKind.MAMBA

CACHE_MODELS: Final[Mapping[str, CacheModel]] = MappingProxyType(
    {
        model.name: model
        for model in (
            CacheModel(
                name="gpt-oss-120b",
                source="gpt-oss-120b",
                groups=_groups(_WINDOW, 16, window=128) + _groups(_FULL, 16),
                page_bytes=16 * 2_048,
                layers_per_block=18,
            ),
            CacheModel(
                name="gemma-3-27b",
                source="gemma-3-27b",
                groups=_groups(_WINDOW, 16, number=6, window=1_024) + _groups(_FULL, 16),
                page_bytes=16 * 8_192,
                layers_per_block=10,
            ),
            CacheModel(
                name="qwen3-next-80b-a3b",
                source="qwen3-next-80b-a3b",
                groups=_groups(_STATE, 544, number=3) + _groups(_FULL, 544),
                page_bytes=544 * 2_048,
                layers_per_block=12,
            ),
            CacheModel(
                name="jamba-mini",
                source="jamba-v0.1",
                groups=_groups(_STATE, 80, number=7) + _groups(_FULL, 80),
                page_bytes=80 * 4_096,
                layers_per_block=4,
            ),
            CacheModel(
                name="llama-3.1-8b",
                source="llama-3.1-8b",
                groups=_groups(_FULL, 16),
                page_bytes=16 * 4_096,
                layers_per_block=32,
            ),
        )
    }
)


def cache_model(name: str) -> CacheModel:
    """Return a model by name.

    Raises:
        UnknownError: No such model; the message lists those that there are.
    """
    if name not in CACHE_MODELS:
        msg = f"model {name!r} is not known; expected one of {', '.join(CACHE_MODELS)}"
        raise UnknownError(msg)
    return CACHE_MODELS[name]
