"""Sizes: what one layer of each role keeps, computed from the config's fields.

Each record names the fields that an architecture uses; called with a config, it returns what the
layer keeps. KV is one key and one value vector per head and token (or one latent, for MLA). A
recurrent state is its convolution's last inputs plus its state matrices:

    mamba1       conv  (kernel - 1) x inner                 ssm  inner x state_size
    mamba2       conv  (k-1) x (heads*dim + 2*groups*state) ssm  heads x dim x state_size
    gated delta  conv  (kernel - 1) x (2*key + value)       ssm  heads x value_dim x key_dim
    KDA          conv  (kernel - 1) x 3*heads*dim           ssm  heads x dim x dim
    lightning    none                                       ssm  heads x dim x dim
    short conv   conv  (kernel - 1) x dim                   none

The order of dimensions is that of vLLM 0.32, which has the tokens of a convolution first unless
`VLLM_SSM_CONV_STATE_LAYOUT` is DS. Mamba-1's kernels read channels first; the engine transposes.

Convolutions keep the model's type. State matrices keep `mamba_ssm_dtype`, except Mamba-1's,
which keep the model's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from kvbraid.models.config import ConfigReader, FieldNames
from kvbraid.models.layers import LayerSpec
from kvbraid.models.shapes import RecurrentState, StatePart, StateTensor
from kvbraid.spec import SpecKind

Sizer: TypeAlias = Callable[[ConfigReader], LayerSpec]

KV_HEADS: Final[FieldNames] = ("num_key_value_heads",)
HEAD_DIM: Final[FieldNames] = ("head_dim",)
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
    kv_heads: FieldNames = KV_HEADS
    key_dim: FieldNames = HEAD_DIM
    value_dim: FieldNames | None = None
    window: FieldNames | None = None
    itself: int = 0
    chunk: FieldNames | None = None
    index: tuple[FieldNames, FieldNames] | None = (
        None  # Index heads and their size, if there are any.
    )

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token, and the window or chunk of the kind."""
        key_dim = config.size(*self.key_dim)
        value_dim = key_dim if self.value_dim is None else config.size(*self.value_dim)
        cache = config.cache_type()
        heads = cache.heads(num=config.size(*self.kv_heads), key_dim=key_dim, value_dim=value_dim)
        index = 0 if self.index is None else prod(config.size(*each) for each in self.index)
        return LayerSpec(
            kind=self.kind,
            window=None if self.window is None else config.size(*self.window) + self.itself,
            chunk=None if self.chunk is None else config.size(*self.chunk),
            kv_bytes_per_token=heads.bytes_per_token + cache.elements_bytes(index),
            shape=None if index else heads,
            unpaged=INDEXED if index else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """MLA: one compressed vector and one rotary key for all heads; `index` adds an index key."""

    index: FieldNames | None = None

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token."""
        cache = config.cache_type()
        latent = cache.latent(config.size("kv_lora_rank") + config.size("qk_rope_head_dim"))
        index = 0 if self.index is None else config.size(*self.index)
        return LayerSpec(
            kind=SpecKind.MLA_ATTENTION,
            kv_bytes_per_token=latent.bytes_per_token + cache.elements_bytes(index),
            shape=None if index else latent,
            unpaged=INDEXED if index else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeyValue:
    """One vector that serves as key and value, kept once per `ratio` tokens (DeepSeek-V4)."""

    kind: SpecKind
    ratio: int = 1
    window: FieldNames | None = None
    index: FieldNames | None = None

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return bytes per token, rounded up, and the window of the kind."""
        elements = config.size(*HEAD_DIM)
        if self.index is not None:
            elements += config.size(*self.index)
        vector = config.cache_type().heads(num=1, key_dim=elements, value_dim=0)
        return LayerSpec(
            kind=self.kind,
            window=None if self.window is None else config.size(*self.window),
            kv_bytes_per_token=-(-vector.bytes_per_token // self.ratio),
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
        channels = (
            StatePart(what="state heads", num=heads, width=dim),
            StatePart(what="state groups", num=groups, width=2 * state, replicable=True),
        )
        return recurrent(_inputs(config, kernel, *channels), _matrices(config, heads, dim, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Mamba-1: the field names of expansion, state and kernel; `inner`: of a width given directly.

    Everything keeps the model's type, unless a type of state matrices is asked for.
    """

    expand: str
    state: str
    kernel: str
    inner: FieldNames = ()

    def __call__(self, config: ConfigReader) -> LayerSpec:
        """Return the bytes of one state."""
        inner = config.optional_size(*self.inner)
        if inner is None:
            inner = config.size(self.expand) * config.size("hidden_size")
        channels = StatePart(what="state channels", num=inner)
        ssm = StateTensor(
            name="ssm",
            dims=(inner, config.size(self.state)),
            dtype=config.matrix_dtype("dtype", "torch_dtype"),
            parts=(channels,),
        )
        return recurrent(_inputs(config, config.size(self.kernel), channels), ssm)


def gated_delta(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one gated delta net state (Qwen3-Next, Qwen3.5)."""
    key_heads, value_heads = (
        config.size("linear_num_key_heads"),
        config.size("linear_num_value_heads"),
    )
    key_dim = config.size("linear_key_head_dim")
    value_dim = config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim")
    channels = (
        StatePart(what="key heads of the state", num=key_heads, width=2 * key_dim),
        StatePart(what="value heads of the state", num=value_heads, width=value_dim),
    )
    return recurrent(
        _inputs(config, kernel, *channels), _matrices(config, value_heads, value_dim, key_dim)
    )


def kimi_delta(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one Kimi delta attention state."""
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    return delta(config, *(f"linear_attn_config.{name}" for name in names))


def delta(config: ConfigReader, heads_name: str, dim_name: str, kernel_name: str) -> LayerSpec:
    """Return the bytes of one delta state, named as an architecture names its sizes."""
    heads, dim, kernel = config.size(heads_name), config.size(dim_name), config.size(kernel_name)
    channels = StatePart(what="state heads", num=heads, width=3 * dim)
    return recurrent(_inputs(config, kernel, channels), _matrices(config, heads, dim, dim))


def lightning(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one lightning attention state (MiniMax-Text-01 and M1)."""
    dim = config.size(*HEAD_DIM)
    return recurrent(_matrices(config, config.size("num_attention_heads"), dim, dim))


def short_conv(config: ConfigReader) -> LayerSpec:
    """Return the bytes of one short convolution's state (LFM2)."""
    channels = StatePart(what="channels", num=config.size("conv_dim"))
    return recurrent(_inputs(config, config.size("conv_L_cache"), channels))


def recurrent(*tensors: StateTensor) -> LayerSpec:
    """Return a layer that keeps one state of these tensors."""
    state = RecurrentState(tensors=tensors)
    return LayerSpec(kind=SpecKind.MAMBA, state_bytes=state.size_bytes, shape=state)


def _inputs(config: ConfigReader, kernel: int, *channels: StatePart) -> StateTensor:
    """The last inputs of a convolution, which keep the model's type."""
    width = sum(part.num * part.width for part in channels)
    return StateTensor(
        name="conv",
        dims=(kernel - 1, width),
        dtype=config.model_dtype(),
        axis=1,
        parts=channels,
    )


def _matrices(config: ConfigReader, heads: int, rows: int, columns: int) -> StateTensor:
    """State matrices, one per head, which keep a type of their own."""
    return StateTensor(
        name="ssm",
        dims=(heads, rows, columns),
        dtype=config.matrix_dtype("mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
        parts=(StatePart(what="state heads", num=heads),),
    )
