"""Cache types: the names of element types, and what a quantized cache keeps of a token.

    plain        K | V                            fp8, bfloat16, ...: scales outside of the cache
    per head     K | V, and a scale for each      fp8_per_token_head, int8_per_token_head
    packed       one row per token, opaque        fp8_ds_mla, nvfp4_ds_mla: latents of 576 alone

Invariant: sizes are those of vLLM 0.32. A type whose page has another form is refused by name,
never approximated. Nothing is read here: config.py takes the names from a config.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.models.shapes import ELEMENT_BYTES, Heads

DTYPES: Final[Mapping[str, str]] = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3fn": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float8_e5m2": "float8_e5m2",
}
"""The element types that configs name, and the names that they go by here."""

_PACKED_LATENT: Final = 576  # Elements: 512 of the latent and 64 of its rotary key.
_SCALE_BYTES: Final = 4  # A float32.


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """How the keys and values of a layer are stored; `row_bytes` is the size of a packed token."""

    name: str
    dtype: str
    has_scales: bool = False
    row_bytes: int | None = None

    def heads(self, *, num: int, key_dim: int, value_dim: int) -> Heads:
        """Return what attention keeps of a token.

        Raises:
            InvalidValueError: A type that packs latents.
        """
        if self.row_bytes is not None:
            raise self._refused(f"{num} heads of {key_dim} elements")
        return Heads(
            num=num,
            key_dim=key_dim,
            value_dim=value_dim,
            dtype=self.dtype,
            scale_bytes=self._scale_bytes,
        )

    def latent(self, dim: int) -> Heads:
        """Return what a latent of `dim` elements, for all heads, keeps of a token.

        Raises:
            InvalidValueError: A latent that the type does not pack.
        """
        if self.row_bytes is not None and dim != _PACKED_LATENT:
            raise self._refused(f"a latent of {dim} elements")
        return Heads(
            num=1,
            key_dim=dim if self.row_bytes is None else self.row_bytes,
            value_dim=0,
            dtype=self.dtype,
            scale_bytes=self._scale_bytes,
            replicated=True,
        )

    def elements_bytes(self, count: int) -> int:
        """Return the bytes of elements kept apart from keys and values, without scales."""
        return count * ELEMENT_BYTES[self.dtype]

    @property
    def _scale_bytes(self) -> int:
        return 2 * _SCALE_BYTES if self.has_scales else 0

    def _refused(self, kept: str) -> InvalidValueError:
        return InvalidValueError(
            f"cache_dtype = {shortened(self.name)} packs latents of {_PACKED_LATENT} elements, "
            f"and layers of this model keep {kept}; choose a plain type, such as fp8"
        )


def plain(name: str) -> CacheType:
    """Return the cache type of plain elements of one type, named as here."""
    return CacheType(name=name, dtype=name)


CACHE_TYPES: Final[Mapping[str, CacheType]] = {
    **{name: plain(dtype) for name, dtype in DTYPES.items()},
    "fp8_per_token_head": CacheType(
        name="fp8_per_token_head", dtype="float8_e4m3fn", has_scales=True
    ),
    "int8_per_token_head": CacheType(name="int8_per_token_head", dtype="int8", has_scales=True),
    "fp8_ds_mla": CacheType(name="fp8_ds_mla", dtype="uint8", row_bytes=656),
    "nvfp4_ds_mla": CacheType(name="nvfp4_ds_mla", dtype="uint8", row_bytes=352),
}


def cache_type(name: str) -> CacheType:
    """Return a cache type by the engine's name.

    Raises:
        InvalidValueError: A name that is not in the table.
    """
    if name in CACHE_TYPES:
        return CACHE_TYPES[name]
    known = f"expected one of {', '.join(CACHE_TYPES)}"
    if name.startswith(("nvfp4", "int4", "turboquant", "ultraquant")):
        known += "; pages with less than a byte for an element are not modelled"
    raise InvalidValueError(f"cache_dtype = {shortened(name)}; {known}")
