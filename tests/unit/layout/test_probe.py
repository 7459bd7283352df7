"""A backend's own words give the geometry of its layers, or the reason why there is none."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kvbraid.errors import LayoutError
from kvbraid.layout import Geometry, Layout, LayoutGroup, LayoutLayer, geometry_of, plan_memory
from kvbraid.layout.planning.probe import (
    FIRST_SENTINEL,
    Probe,
    geometry_from_layouts,
    probe_backend,
)
from kvbraid.models import Heads, Page
from kvbraid.spec import SpecKind

HEADS: Final = Heads(num=4, key_dim=64, value_dim=64, dtype="bfloat16")
LATENT: Final = Heads(num=1, key_dim=576, value_dim=0, dtype="bfloat16", replicated=True)


class Backend:
    """What engines before vLLM's layout refactor ask: `B`, `N`, `H`, `D` in `dims` are sizes."""

    def __init__(
        self,
        *dims: int | str,
        alone: Sequence[int] | Exception | None = None,
        with_layers: Sequence[int] | Exception | None = None,
    ) -> None:
        self._dims = dims
        self._orders = {False: alone, True: with_layers}
        self.cache_dtypes: set[str | None] = set()

    def get_kv_cache_shape(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str | None = None,
    ) -> tuple[int, ...]:
        self.cache_dtypes.add(cache_dtype_str)
        if block_size % 16:
            msg = "Block size must be a multiple of 16."
            raise ValueError(msg)
        sizes = {"B": num_blocks, "N": block_size, "H": num_kv_heads, "D": head_size}
        return tuple(sizes[each] if isinstance(each, str) else each for each in self._dims)

    def get_kv_cache_stride_order(
        self, include_num_layers_dimension: bool = False
    ) -> Sequence[int]:
        order = self._orders[include_num_layers_dimension]
        if isinstance(order, Exception):
            raise order
        if order is None:
            raise NotImplementedError
        return order


def layer(probe: Probe, heads: Heads = HEADS, name: str = "a") -> LayoutLayer:
    kind = SpecKind.MLA_ATTENTION if heads.replicated else SpecKind.FULL_ATTENTION
    page = Page(kind=kind, block_size=16, shape=heads)
    return LayoutLayer(name=name, page=page, geometry=probe.geometry, unprobed=probe.reason)


FLASH: Final = Backend(2, "B", "N", "H", "D", alone=range(5), with_layers=(2, 0, 1, 3, 4, 5))
TRITON: Final = Backend(
    "B", 2, "N", "H", "D", alone=(0, 3, 1, 2, 4), with_layers=(1, 4, 0, 2, 3, 5)
)
MOCK_NHD: Final = Backend("B", 2, "H", "N", "D", alone=range(5), with_layers=(1, 0, 2, 3, 4, 5))
MOCK_HND: Final = Backend(
    "B", 2, "H", "N", "D", alone=(0, 2, 1, 3, 4), with_layers=(1, 3, 0, 2, 4, 5)
)
MLA: Final = Backend("B", "N", "D", alone=range(3), with_layers=(1, 0, 2, 3))
NOT_FIRST: Final = Backend(2, "B", "N", "H", "D", alone=range(5), with_layers=(1, 2, 0, 3, 4, 5))


@pytest.mark.parametrize(
    ("backend", "heads", "expected"),
    [
        (FLASH, HEADS, geometry_of(Layout.NHD, HEADS, 16)),
        (TRITON, HEADS, geometry_of(Layout.HND, HEADS, 16)),
        (MLA, LATENT, geometry_of(Layout.NHD, LATENT, 16)),
        (
            MOCK_HND,
            HEADS,
            Geometry(
                shape=(None, 2, 4, 16, 64),
                dtype="bfloat16",
                order=(0, 2, 1, 3, 4),
                with_layers=(1, 3, 0, 2, 4, 5),
                heads=2,
                tokens=3,
            ),
        ),
    ],
    ids=["flash", "triton", "mla", "mock"],
)
def test_a_backend_tells_its_shape_and_orders(
    backend: Backend, heads: Heads, expected: Geometry
) -> None:
    assert probe_backend(backend, heads, 16) == Probe(geometry=expected)


@pytest.mark.parametrize(
    ("backend", "shape", "count"),
    [
        (FLASH, (2, 3, 16, 4, 64), 1),
        (TRITON, (3, 2, 16, 4, 64), 4),
        (MOCK_NHD, (3, 2, 4, 16, 64), 1),
        (MOCK_HND, (3, 2, 4, 16, 64), 4),
    ],
    ids=["flash", "triton", "mock nhd", "mock hnd"],
)
def test_layers_of_a_probed_backend_share_blocks(
    backend: Backend, shape: tuple[int, ...], count: int
) -> None:
    probe = probe_backend(backend, HEADS, 16)
    layers = tuple(layer(probe, name=name) for name in "abc")
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=16, layers=layers)
    plan = plan_memory([group], num_blocks=3)
    (reference,) = plan.groups[0].references
    assert plan.block_bytes == 3 * 16_384
    assert reference.exact() == ((0, plan.block_bytes),)
    assert reference.chunks[1].count == count
    assert plan.views["b"].shape == shape


@pytest.mark.parametrize("size", [FIRST_SENTINEL, FIRST_SENTINEL + 1])
def test_a_size_that_is_given_is_never_taken_to_find_another(size: int) -> None:
    heads = Heads(num=size, key_dim=size, value_dim=size, dtype="bfloat16")
    geometry = probe_backend(FLASH, heads, 16).geometry
    assert geometry is not None
    assert (geometry.shape, geometry.heads, geometry.tokens) == ((2, None, 16, size, size), 3, 2)


class Grows(Backend):
    """Its content depends on the number of heads."""

    def get_kv_cache_shape(self, *sizes: Any, **options: Any) -> tuple[int, ...]:  # noqa: ANN401
        *others, content = super().get_kv_cache_shape(*sizes, **options)
        return (*others, content + sizes[2])


UNPROBED: Final[dict[str, tuple[object, str]]] = {
    "blocks nowhere": (
        Backend("N", "H", "D"),
        r"gives \(16, 1235, 64\) for 1234 blocks; expected 1234 in it exactly once, .* 0 times",
    ),
    "blocks twice": (
        Backend("B", "B", "N", "H", "D"),
        r"get_kv_cache_shape gives \(1234, 1234, 16, 1235, 64\) for 1234 blocks; .* 2 times",
    ),
    "heads nowhere": (
        Backend(2, "B", "N", 256),
        r"get_kv_cache_shape gives \(2, 1234, 16, 256\) for 1235 heads; .* 0 times",
    ),
    "heads twice": (
        Backend("H", "B", "N", "H", "D"),
        r"gives \(1235, 1234, 16, 1235, 64\) for 1235 heads; .* 2 times",
    ),
    "sizes that depend on each other": (
        Grows("B", "N", "H", "D"),
        r"gives \(1234, 16, 1235, 1299\) for 1235 heads and \(1234, 16, 4, 68\) for 4; expected",
    ),
    "no shape": (
        object(),
        r"get_kv_cache_shape raised AttributeError: 'object' object has no attribute",
    ),
    "a shape that is not there yet": (
        SimpleNamespace(get_kv_cache_shape=lambda *_: (_ for _ in ()).throw(NotImplementedError)),
        r"get_kv_cache_shape raised NotImplementedError: ",
    ),
    "another signature": (
        SimpleNamespace(get_kv_cache_shape=lambda num_blocks: (num_blocks,)),
        r"get_kv_cache_shape raised TypeError: .* takes 1 positional argument but 4 were given",
    ),
    "an order that it refuses": (
        Backend(2, "B", "N", "H", "D", alone=ValueError("Unknown cache layout\nformat XYZ.")),
        r"get_kv_cache_stride_order raised ValueError: Unknown cache layout\\nformat XYZ\.",
    ),
    "an order that is none": (
        Backend(2, "B", "N", "H", "D", alone=(0, 1, 2, 2, 4)),
        r"get_kv_cache_stride_order gives \(0, 1, 2, 2, 4\); expected an order of 5 dimensions",
    ),
}


@pytest.mark.parametrize("case", UNPROBED)
def test_a_probe_that_fails_keeps_its_reason_and_isolates_the_layer(case: str) -> None:
    backend, reason = UNPROBED[case]
    probe = probe_backend(backend, HEADS, 16)
    assert probe.geometry is None
    isolated(probe, reason)


WITHOUT_LAYERS: Final[dict[str, tuple[object, str]]] = {
    "no order with layers": (
        Backend(2, "B", "N", "H", "D", alone=range(5)),
        r"get_kv_cache_stride_order raised NotImplementedError: ",
    ),
    "a method that knows no layers": (
        SimpleNamespace(
            get_kv_cache_shape=FLASH.get_kv_cache_shape,
            get_kv_cache_stride_order=lambda: range(5),
        ),
        r"get_kv_cache_stride_order raised TypeError: .*include_num_layers_dimension",
    ),
    "an order of the wrong length": (
        Backend(2, "B", "N", "H", "D", alone=range(5), with_layers=range(5)),
        r"gives \(0, 1, 2, 3, 4\); expected an order of 6 dimensions",
    ),
    "no order at all": (
        SimpleNamespace(get_kv_cache_shape=FLASH.get_kv_cache_shape),
        r"get_kv_cache_stride_order raised AttributeError: ",
    ),
}


@pytest.mark.parametrize("case", WITHOUT_LAYERS)
def test_without_an_order_with_layers_they_come_first_and_each_is_alone(case: str) -> None:
    backend, reason = WITHOUT_LAYERS[case]
    probe = probe_backend(backend, HEADS, 16)
    assert probe.geometry is not None
    assert probe.geometry.layer_order == (0, 1, 2, 3, 4, 5)
    isolated(probe, reason)


def isolated(probe: Probe, reason: str) -> None:
    """Each layer has a buffer of its own, which says why."""
    assert probe.reason is not None
    layers = (layer(probe, name="a"), layer(probe, name="b"))
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=16, layers=layers)
    plan = plan_memory([group], num_blocks=3)
    assert [buffer.block_bytes for buffer in plan.buffers] == [16_384] * 2
    assert [buffer.why for buffer in plan.buffers] == [
        f"layer {name}: {probe.reason}" for name in "ab"
    ]
    with pytest.raises(LayoutError, match=reason):
        raise LayoutError(probe.reason)


def test_blocks_that_are_not_first_are_isolated_without_a_whole_block() -> None:
    probe = probe_backend(NOT_FIRST, HEADS, 16)
    assert probe.reason is None
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=16, layers=(layer(probe),))
    plan = plan_memory([group], num_blocks=3)
    assert plan.buffers[0].why == "layer a: in its backend's order blocks do not come first"
    assert plan.groups[0].references[0].whole() is None


def test_tokens_that_a_backend_does_not_tell_are_not_known() -> None:
    geometry = probe_backend(Backend("B", 16, "H", "D"), HEADS, 16).geometry
    assert geometry is not None
    assert geometry.tokens is None


def test_a_backend_is_told_the_type_of_the_cache() -> None:
    backend = Backend("B", "N", 656, alone=range(3), with_layers=(1, 0, 2, 3))
    heads = Heads(num=1, key_dim=656, value_dim=0, dtype="uint8", replicated=True)
    geometry = probe_backend(backend, heads, 16, cache_dtype="fp8_ds_mla").geometry
    assert geometry is not None
    assert (geometry.shape, geometry.dtype) == ((None, 16, 656), "uint8")
    assert backend.cache_dtypes == {"fp8_ds_mla"}


def test_a_cache_with_scales_is_seen_as_bytes() -> None:
    heads = Heads(num=4, key_dim=64, value_dim=64, dtype="float8_e4m3fn", scale_bytes=8)
    backend = Backend("B", "H", "N", 136, alone=range(4), with_layers=(1, 0, 2, 3, 4))
    expected = geometry_of(Layout.BLHNC, heads, 16)
    assert probe_backend(backend, heads, 16) == Probe(geometry=expected)


def named(*names: str) -> list[Any]:
    return [SimpleNamespace(name=name) for name in names]


@pytest.mark.parametrize(
    ("supported", "layout"),
    [
        (None, Layout.BLNHC),
        (named("LBHNC", "BLHNC", "BLNHC"), Layout.BLHNC),
        (named("BHLNC"), Layout.BHLNC),
        (named("LHBNC", "LBHNC"), Layout.LHBNC),
    ],
)
def test_the_first_layout_with_blocks_first_is_taken(supported: Any, layout: Layout) -> None:  # noqa: ANN401
    assert geometry_from_layouts(supported, HEADS, 16) == geometry_of(layout, HEADS, 16)


@pytest.mark.parametrize("names", [(), ("NHD",), ("BLNHC", "BNLHC")])
def test_layouts_that_are_not_known_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(
        LayoutError, match=r"supported layouts \[.*\]; expected at least one, out of BL"
    ):
        geometry_from_layouts(named(*names), HEADS, 16)
