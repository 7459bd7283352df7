"""Layers whose groups are packed, and the groups that are expected."""

from collections.abc import Sequence
from typing import Final

from kvbraid.models import CacheLayer, Heads, Page, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

FULL, SWA, MLA, MAMBA = (
    SpecKind.FULL_ATTENTION,
    SpecKind.SLIDING_WINDOW,
    SpecKind.MLA_ATTENTION,
    SpecKind.MAMBA,
)


def attention(
    kind: SpecKind, num: int, dim: int, *, block_size: int = 16, window: int = 1024
) -> Page:
    heads = Heads(num=num, key_dim=dim, value_dim=dim, dtype="bfloat16")
    reach = window if kind.is_window else None
    return Page(kind=kind, block_size=block_size, shape=heads, window=reach)


def vector(
    kind: SpecKind, dim: int, dtype: str = "uint8", *, block_size: int = 64, **fields: int
) -> Page:
    heads = Heads(num=1, key_dim=dim, value_dim=0, dtype=dtype, replicated=True)
    return Page(kind=kind, block_size=block_size, shape=heads, **fields)


def state(num_bytes: int) -> Page:
    tensor = StateTensor(name="conv", dims=(num_bytes,), dtype="uint8")
    return Page(kind=MAMBA, block_size=16, shape=RecurrentState(tensors=(tensor,)))


def layers(*pages: Page) -> tuple[CacheLayer, ...]:
    return tuple(CacheLayer(number=number, page=each) for number, each in enumerate(pages))


LARGE: Final = attention(SWA, 16, 256)  # 262 144 bytes.
SMALL: Final = attention(FULL, 4, 512)  # 131 072 bytes.
LATENT, INDEX = vector(MLA, 576), vector(MLA, 132)  # 36 864 and 8 448 bytes.
LATENT_16: Final = vector(MLA, 576, "bfloat16", block_size=16)  # 18 432 bytes.
WINDOW_LATENT: Final = SpecKind.SLIDING_WINDOW_MLA


def deepseek_v4() -> list[Page]:
    """DeepSeek-V4-Flash's caches in FP8, as vLLM 0.32 registers them, padded to 576 bytes.

    Each of 43 layers has a window. All but the first two also have an entry for 4 or for 128
    tokens, in turn, and the inputs of the entry that is being formed; and where an entry is for 4
    tokens, the same of the index.
    """
    window = vector(WINDOW_LATENT, 584, window=128, padded_bytes=37_440)
    every_4 = [
        vector(MLA, 584, block_size=256, tokens_per_entry=4, padded_bytes=37_440),
        vector(WINDOW_LATENT, 2048, "float32", block_size=4, window=8, padded_bytes=32_832),
        vector(MLA, 132, block_size=256, tokens_per_entry=4, padded_bytes=8_640),
        vector(WINDOW_LATENT, 512, "float32", block_size=4, window=8, padded_bytes=8_640),
    ]
    every_128 = [
        vector(MLA, 584, block_size=256, tokens_per_entry=128, padded_bytes=1_728),
        vector(WINDOW_LATENT, 1024, "float32", block_size=8, window=128, padded_bytes=32_832),
    ]
    pages = [window, window]
    for number in range(2, 43):
        pages += [window, *(every_128 if number % 2 else every_4)]
    return pages


# Layers, the number of layers of each group, and bytes of a block.
PACKED: Final[dict[str, tuple[Sequence[Page], list[int], int]]] = {
    "gemma-4: five windows to a full layer": (
        ([LARGE] * 5 + [SMALL]) * 10,
        [5] * 10 + [10],
        1_310_720,
    ),
    "DeepSeek sparse attention: an index beside each latent": (
        [LATENT, INDEX] * 6,
        [12],
        271_872,
    ),
    "MiniMax-M3: index keys beside 57 of 60 layers": (
        [attention(FULL, 4, 128)] * 3
        + [attention(FULL, 4, 128), vector(MLA, 128, "bfloat16", block_size=16)] * 57,
        [117],
        60 * 32_768 + 57 * 4_096,
    ),
    "DeepSeek-V4: 22 of 43 windows and 21 of two inputs per group": (
        deepseek_v4(),
        [22, 21, 62, 42, 20],
        21 * (37_440 + 8_640) + 20 * 1_728,
    ),
    "full layers that repeat no pattern stay in one group beside one that does": (
        [attention(SWA, 1, 64), attention(SWA, 2, 64)] * 2 + [SMALL] * 5 + [LATENT_16],
        [4, 6],
        5 * 131_072 + 18_432,
    ),
    "states are cut to fit a block of full attention": (
        ([state(300_000)] * 3 + [SMALL]) * 5,
        [2] * 7 + [1, 5],
        5 * 131_072,
    ),
    "a state larger than any other block is alone": (
        [state(300_000)] * 3 + [SMALL],
        [1, 1, 1, 1],
        300_000,
    ),
    "full layers of unequal pages stay in one group": (
        [SMALL, attention(FULL, 8, 512), SMALL] + [LARGE] * 5,
        [3, 2, 2, 1],
        4 * 131_072,
    ),
}
