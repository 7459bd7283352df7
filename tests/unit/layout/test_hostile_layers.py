"""What no engine gives, and a script may: it is refused by name, and never becomes a number."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from kvbraid.errors import InvalidValueError, LayoutError
from kvbraid.layout import (
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    UnknownPage,
    from_engine,
    from_grouping,
    from_json,
    geometry_of,
    plan_memory,
    probe_backend,
    to_json,
)
from kvbraid.layout.connectors import by_layer, cross_layer_view
from kvbraid.layout.descriptors import Descriptors
from kvbraid.layout.planning.waste import request_cost
from kvbraid.models import CacheLayer, Grouping, form_groups
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

from tests.unit.layout.engine_fakes import Engine, FullAttentionSpec, MambaSpec, group, lay_out

HEADS: Final = Heads(num=2, key_dim=4, value_dim=4, dtype="bfloat16")
FULL: Final = Page(kind=SpecKind.FULL_ATTENTION, block_size=4, shape=HEADS)
NO_SIZES: Final[tuple[Any, ...]] = (
    True, 1.5, 2.0, float("nan"), float("inf"), -1, 10**30, "3", np.int64(4)
)  # fmt: skip


def layer(name: Any = "0", page: Page = FULL, **more: Any) -> LayoutLayer:  # noqa: ANN401
    assert isinstance(page.shape, Heads)
    geometry = geometry_of(Layout.HND, page.shape, page.block_size)
    return LayoutLayer(name=name, page=page, geometry=geometry, **more)


def state(name: str, *tensors: str) -> LayoutLayer:
    found = tuple(StateTensor(name=each, dims=(2, 2), dtype="float32") for each in tensors)
    shape = RecurrentState(tensors=found)
    return LayoutLayer(
        name=name, page=Page(kind=SpecKind.MAMBA, block_size=4, shape=shape, padded_bytes=128)
    )


def plan(*layers: LayoutLayer, block_size: int = 4, **more: Any) -> MemoryPlan:  # noqa: ANN401
    mine = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=block_size, layers=layers)
    return plan_memory([mine], **{"num_blocks": 5} | more)


TAKERS: Final[dict[str, Callable[[Any], object]]] = {
    "num_blocks": lambda size: plan(layer(), num_blocks=size),
    "memory_bytes": lambda size: plan(layer(), num_blocks=None, memory_bytes=size),
    "alignment": lambda size: plan(layer(), options=PlanOptions(alignment=size)),
    "layer 0: alignment": lambda size: layer(alignment=size),
    "layer 0: kernel_block": lambda size: layer(kernel_block=size),
    "block_size of a full_attention group": lambda size: plan(layer(), block_size=size),
    "bytes of a Ring page": lambda size: UnknownPage(type_name="Ring", page_bytes=size),
    "shape": lambda size: geometry_of(Layout.NHD, HEADS, size),
    "base": lambda size: Descriptors(plan(layer()), bases=[size]),
    "device": lambda size: Descriptors(plan(layer()), bases=0, device=size),
    "group": lambda size: Descriptors(plan(layer()), bases=0).all_blocks(int(size)),
}


@pytest.mark.parametrize("size", NO_SIZES, ids=repr)
@pytest.mark.parametrize("what", [each for each in TAKERS if each != "group"])
def test_what_is_no_size_is_refused_by_what_it_was_given_for(what: str, size: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidValueError, match=f"^{what} (is|=) "):
        TAKERS[what](size)


@pytest.mark.parametrize("size", [-1, 1])
def test_a_list_of_all_blocks_is_of_a_group_that_the_plan_has(size: int) -> None:
    with pytest.raises(InvalidValueError, match=f"group = {size}; the plan has groups 0 to 0"):
        TAKERS["group"](size)


@pytest.mark.parametrize("num", [1.5, 2.0])
def test_a_page_of_no_whole_bytes_is_refused(num: Any) -> None:  # noqa: ANN401
    page = replace(FULL, shape=replace(HEADS, num=num))
    with pytest.raises(InvalidValueError, match="layer 0: content_bytes of its page is "):
        LayoutLayer(name="0", page=page)


def test_a_plan_of_more_bytes_than_any_memory_has_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="no memory has 2"):
        plan(layer(), num_blocks=1 << 60)


@pytest.mark.parametrize("ids", [5, None, [[[1], [1, 2]]]], ids=repr)
def test_block_ids_that_are_no_rows_are_refused(ids: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidValueError, match="block ids of"):
        Descriptors(plan(layer()), bases=0).chunks(ids)


@pytest.mark.parametrize("name", [None, 0, 7, "", b"0"])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidValueError, match="a layer without a name"):
        layer(name)
    with pytest.raises(InvalidValueError, match="its name must be a text"):
        plan(layer(), options=PlanOptions(aliases={name: "0"}))


@pytest.mark.parametrize("name", ["takes", "split"])
def test_an_option_that_is_no_member_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is 'intact'; expected a .*, as "):
        PlanOptions(**{name: "intact"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensors", "message"), [((), "content_bytes of its page is 0"), (("ssm.x",), "a dot in its")]
)
def test_a_state_whose_views_cannot_be_named_is_refused(
    tensors: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=f"layer 0: .*{message}"):
        state("0", *tensors)


def test_two_layers_of_one_group_have_two_names() -> None:
    with pytest.raises(InvalidValueError, match="layer 0 is given 2 times"):
        plan(layer(), state("0", "ssm"))


def test_an_alias_never_hides_a_state_of_the_same_name() -> None:
    shared = plan(layer("1"), state("0", "ssm"), options=PlanOptions(aliases={"0": "1"}))
    with pytest.raises(InvalidValueError, match="layer 0 has a cache of keys and values and a"):
        by_layer(shared, shared.views)


def test_a_kernel_block_is_refused_before_a_geometry_is_made_of_it() -> None:
    compressed = replace(FULL, block_size=16, tokens_per_entry=8)
    groups = Grouping(groups=form_groups([CacheLayer(number=3, page=compressed)]))
    with pytest.raises(LayoutError, match="layer 3: kernel blocks of 4 tokens have no whole"):
        from_grouping(groups, kernel_block=4)
    with pytest.raises(InvalidValueError, match="kernel_block is 0; expected a whole number"):
        from_grouping(groups, kernel_block=0)
    with pytest.raises(InvalidValueError, match="layout is 'nhd'; expected a Layout, as"):
        from_grouping(groups, layout="nhd")  # type: ignore[arg-type]


def test_one_tensor_of_all_layers_needs_no_order_of_names_in_a_document() -> None:
    planned = plan(*(layer(str(i)) for i in range(12)))
    text = json.dumps(to_json(planned), sort_keys=True)  # "10" comes before "2".
    assert cross_layer_view(from_json(json.loads(text))) == cross_layer_view(planned)


@pytest.mark.parametrize("number", [-1, 1.5, True])
def test_a_request_has_a_whole_number_of_tokens(number: Any) -> None:  # noqa: ANN401
    mine = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=4, layers=(layer(),))
    with pytest.raises(InvalidValueError, match="num_tokens is "):
        request_cost(plan(layer()), [mine], number)


class Backend:
    """Answers with a shape and an order of any kind."""

    def __init__(self, extra: object, order: object) -> None:
        self.extra, self.order = extra, order

    def get_kv_cache_shape(self, blocks: int, tokens: int, heads: int, size: int) -> Any:  # noqa: ANN401
        return (blocks, self.extra, tokens, heads, size)

    def get_kv_cache_stride_order(self, **_: bool) -> Any:  # noqa: ANN401
        return self.order


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Backend(2.0, (0, 1, 2, 3, 4)), "get_kv_cache_shape raised TypeError"),
        (Backend(0, (0, 1, 2, 3, 4)), "get_kv_cache_shape gives no memory: shape = "),
        (Backend(2, (0, "1", 2, 3, 4)), "get_kv_cache_stride_order raised TypeError"),
    ],
)
def test_an_answer_that_is_no_shape_is_kept_as_the_reason(backend: Backend, reason: str) -> None:
    probe = probe_backend(backend, HEADS, 4)
    assert probe.geometry is None
    assert probe.reason is not None
    assert probe.reason.startswith(reason)


def test_a_geometry_of_no_whole_sizes_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="in whole numbers"):
        Geometry(shape=(None, 2.0), dtype="int8", order=(0, 1))  # type: ignore[arg-type]


def engine() -> Engine:
    return lay_out(
        "BLNHC",
        [
            group(FullAttentionSpec(), "a", "b"),
            group(MambaSpec(shapes=((3, 2),), dtypes=("torch.float32",)), "c"),
        ],
    )


@pytest.mark.parametrize("num_blocks", [0, 1, -1, 3.0, None, "3", True])
def test_an_engine_has_blocks_besides_the_null_block(num_blocks: Any) -> None:  # noqa: ANN401
    found = engine()
    found.config.num_blocks = num_blocks
    with pytest.raises(
        InvalidValueError, match=f"num_blocks of the config is {num_blocks!r}; expected a"
    ):
        found.plan()


def test_the_config_of_another_version_of_the_engine_is_told_from_a_wrong_one() -> None:
    found = engine()
    with pytest.raises(InvalidValueError, match="a NoneType without num_blocks; from"):
        from_engine(None, found.views)
    found.config.kv_cache_tensors[0] = SimpleNamespace(size=1, shared_by=["a"])  # type: ignore[call-overload]
    with pytest.raises(InvalidValueError, match=r"a tensor of the config is .* without layers"):
        found.plan()


@pytest.mark.parametrize(("index", "missing"), [(0, "num_heads"), (1, "dtypes")])
def test_the_spec_of_another_version_of_the_engine_is_told_by_its_field(
    index: int, missing: str
) -> None:
    found = engine()
    spec = found.config.kv_cache_groups[index].kv_cache_spec
    known = {name: value for name, value in vars(spec).items() if name != missing}
    other = type(type(spec).__name__, (), {"block_size": 16, "dtype": "int8"} | known)
    found.config.kv_cache_groups[index].kv_cache_spec = other()
    with pytest.raises(InvalidValueError, match=f"layer [ac]: its spec is .* without {missing}"):
        found.plan()
