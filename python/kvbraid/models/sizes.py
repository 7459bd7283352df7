"""Sizes: what one layer of each role keeps, computed from the config's fields.

Each record names the fields that an architecture uses; called with a config, it returns what the
layer keeps. KV is one key and one value vector per head and token (or one latent, for MLA). A
recurrent state is its convolution's last inputs plus its state matrices:

    mamba1       conv  inner x (kernel - 1)                 state  inner x state_size
    mamba2       conv  (heads*dim + 2*groups*state) x (k-1) state  heads x dim x state_size
    gated delta  conv  (2*key + value) x (kernel - 1)       state  heads x key_dim x value_dim
    KDA          conv  3*heads*dim x (kernel - 1)           state  heads x dim x dim
    lightning    none                                       state  heads x dim x dim
    short conv   conv  dim x (kernel - 1)                   none

Convolutions keep the model's type. State matrices keep `mamba_ssm_dtype`, except Mamba-1's,
which keep the model's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeAlias

from kvbraid.models.config import ConfigReader, Names
from kvbraid.models.layers import LayerSpec
from kvbraid.models.shapes import Heads, State, StatePart
from kvbraid.spec import SpecKind

Sizer: TypeAlias = Callable[[ConfigReader], LayerSpec]

KV_HEADS: Final[Names] = ("num_key_value_heads",)
HEAD_DIM: Final[Names] = ("head_dim",)
# Why a layer has no plain pages, as refusals say it.
INDEXED: Final = "index keys as well, in an engine's own quantized pages of another size"
COMPRESSED: Final = "compressed entries, in blocks that pack pages of several sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values per head; `value_dim` defaults to the key's; `index` adds index keys.

    `itself` is 1 if the config's window counts only the tokens before a token; an engine's window
    includes the token itself.
    """

    kind: SpecKind = SpecKind.FULL_ATTENTION
    kv_heads: Names = KV_HEADS
    key_dim: Names = HEAD_DIM
    value_dim: Names | None = None
    window: Names | None = None
    itself: int = 0
    chunk: Names | None = None
    index: tuple[Names, Names] | None = None  # Index heads and their size, if there are any.

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token, and the window or chunk of the kind."""
        key_dim = config.size(*self.key_dim)
        value_dim = key_dim if self.value_dim is None else config.size(*self.value_dim)
        heads = Heads(
            num=config.size(*self.kv_heads),
            key_dim=key_dim,
            value_dim=value_dim,
            element_bytes=config.kv_element_bytes(),
        )
        index = 0 if self.index is None else prod(config.size(*each) for each in self.index)
        return LayerSpec(
            kind=self.kind,
            window=None if self.window is None else config.size(*self.window) + self.itself,
            chunk=None if self.chunk is None else config.size(*self.chunk),
            kv_bytes_per_token=heads.bytes_per_token + index * config.kv_element_bytes(),
            shape=None if index else heads,
            unpaged=INDEXED if index else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """MLA: one compressed vector and one rotary key for all heads; `index` adds an index key."""

    index: Names | None = None

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token."""
        latent = Heads(
            num=1,
            key_dim=config.size("kv_lora_rank") + config.size("qk_rope_head_dim"),
            value_dim=0,
            element_bytes=config.kv_element_bytes(),
            replicated=True,
        )
        index = 0 if self.index is None else config.size(*self.index)
        return LayerSpec(
            kind=SpecKind.MLA_ATTENTION,
            kv_bytes_per_token=latent.bytes_per_token + index * config.kv_element_bytes(),
            shape=None if index else latent,
            unpaged=INDEXED if index else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeyValue:
    """One vector that serves as key and value, kept once per `ratio` tokens (DeepSeek-V4)."""

    kind: SpecKind
    ratio: int = 1
    window: Names | None = None
    index: Names | None = None

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token, rounded up, and the window of the kind."""
        elements = config.size(*HEAD_DIM)
        if self.index is not None:
            elements += config.size(*self.index)
        return LayerSpec(
            kind=self.kind,
            window=None if self.window is None else config.size(*self.window),
            kv_bytes_per_token=-(-elements * config.kv_element_bytes() // self.ratio),
            unpaged=COMPRESSED,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba-2: an architecture's field names for heads, groups, state and kernel."""

    heads: str
    head_dim: str
    groups: str
    state: str
    kernel: str

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return the bytes of one state."""
        heads, dim = config.size(self.heads), config.size(self.head_dim)
        groups, state = config.size(self.groups), config.size(self.state)
        kernel = config.size(self.kernel)
        return recurrent(
            _inputs(config, "state heads", heads, kernel, channels=dim),
            replace(
                _inputs(config, "state groups", groups, kernel, channels=2 * state),
                replicable=True,
            ),
            _matrices(config, num=heads, elements=dim * state),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Mamba-1: the field names of expansion, state and kernel; `inner`: of a width given directly.

    Everything keeps the model's type, unless a type of state matrices is asked for.
    """

    expand: str
    state: str
    kernel: str
    inner: Names = ()

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return the bytes of one state."""
        inner = config.optional_size(*self.inner)
        if inner is None:
            inner = config.size(self.expand) * config.size("hidden_size")
        state_bytes = config.matrix_element_bytes("dtype", "torch_dtype")
        return recurrent(
            _inputs(config, "state channels", inner, config.size(self.kernel)),
            StatePart(
                what="state channels",
                num=inner,
                elements=config.size(self.state),
                element_bytes=state_bytes,
            ),
        )


def gated_delta(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one gated delta net state (Qwen3-Next, Qwen3.5)."""
    key_heads, value_heads = (
        config.size("linear_num_key_heads"),
        config.size("linear_num_value_heads"),
    )
    key_dim = config.size("linear_key_head_dim")
    value_dim = config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim")
    return recurrent(
        _inputs(config, "key heads of the state", key_heads, kernel, channels=2 * key_dim),
        _inputs(config, "value heads of the state", value_heads, kernel, channels=value_dim),
        _matrices(config, num=value_heads, elements=key_dim * value_dim),
    )


def kimi_delta(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one Kimi delta attention state."""
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    return delta(config, *(f"linear_attn_config.{name}" for name in names))


def delta(config: ConfigReader, heads_name: str, dim_name: str, kernel_name: str) -> LayerSpec:
    """Return the bytes of one delta state, named as an architecture names its sizes."""
    heads, dim, kernel = config.size(heads_name), config.size(dim_name), config.size(kernel_name)
    return recurrent(
        _inputs(config, "state heads", heads, kernel, channels=3 * dim),
        _matrices(config, num=heads, elements=dim * dim),
    )


def lightning(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one lightning attention state (MiniMax-Text-01 and M1)."""
    dim = config.size(*HEAD_DIM)
    return recurrent(_matrices(config, num=config.size("num_attention_heads"), elements=dim * dim))


def short_conv(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one short convolution's state (LFM2)."""
    return recurrent(
        _inputs(config, "channels", config.size("conv_dim"), config.size("conv_L_cache"))
    )


def recurrent(*parts: StatePart) -> LayerSpec:
    """Return a layer that keeps one state of these parts."""
    state = State(parts=parts)
    return LayerSpec(kind=SpecKind.MAMBA, state_bytes=state.size_bytes, shape=state)


def _inputs(
    config: ConfigReader, what: str, num: int, kernel: int, *, channels: int = 1
) -> StatePart:
    """The last inputs of a convolution, which keep the model's type."""
    elements = channels * (kernel - 1)
    element_bytes = config.model_element_bytes()
    return StatePart(what=what, num=num, elements=elements, element_bytes=element_bytes)


def _matrices(config: ConfigReader, *, num: int, elements: int) -> StatePart:
    """State matrices, which keep a type of their own."""
    element_bytes = config.matrix_element_bytes("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return StatePart(what="state heads", num=num, elements=elements, element_bytes=element_bytes)
