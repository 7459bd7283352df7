"""Shapes: element types by name, states as named tensors, and how ranks divide a tensor."""

import json
from pathlib import Path
from typing import Final

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.models import Heads, RecurrentState, StatePart, StateTensor, engine_layers
from kvbraid.models.cache_types import DTYPES
from kvbraid.models.shapes import ELEMENT_BYTES

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"

PUBLISHED: Final[dict[str, list[tuple[str, tuple[int, ...], str]]]] = {
    "qwen3-next-80b-a3b": [
        ("conv", (3, 8192), "bfloat16"),
        ("ssm", (32, 128, 128), "bfloat16"),
    ],
    "jamba-v0.1": [("conv", (3, 8192), "bfloat16"), ("ssm", (8192, 16), "bfloat16")],
    "nemotron-3-nano-30b-a3b": [
        ("conv", (3, 6144), "bfloat16"),
        ("ssm", (64, 64, 128), "float32"),
    ],
    "kimi-linear-48b-a3b": [
        ("conv", (3, 12288), "bfloat16"),
        ("ssm", (32, 128, 128), "float32"),
    ],
    "minimax-text-01": [("ssm", (64, 128, 128), "bfloat16")],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_state_is_tensors_by_name_in_the_order_of_its_page(name: str) -> None:
    config = json.loads((FIXTURES / f"{name}.json").read_text())
    (state,) = (
        kind.spec.shape
        for kind in engine_layers(config).kinds
        if isinstance(kind.spec.shape, RecurrentState)
    )
    found = [(tensor.name, tensor.dims, tensor.dtype) for tensor in state.tensors]
    assert found == PUBLISHED[name]


def test_every_type_that_a_config_may_name_has_a_size() -> None:
    assert set(DTYPES.values()) <= set(ELEMENT_BYTES)


def test_scales_beside_each_head_are_part_of_a_token() -> None:
    heads = Heads(num=8, key_dim=128, value_dim=64, dtype="float8_e4m3fn", scale_bytes=8)
    assert heads.bytes_per_token == 8 * (128 + 64 + 8)
    assert heads.on_rank(4).bytes_per_token == 2 * (128 + 64 + 8)


def test_elements_of_unknown_size_are_refused_with_the_known_types() -> None:
    with pytest.raises(InvalidValueError, match=r"heads is 'half'; expected one of float32, b"):
        Heads(num=1, key_dim=1, value_dim=1, dtype="half")


TENSORS: Final[dict[str, tuple[dict[str, object], str]]] = {
    "no dimensions": ({"dims": ()}, r"conv has dimensions \(\); expected at least 1"),
    "an empty one": ({"dims": (0, 8)}, r"conv has dimensions \(0, 8\); expected at least 1"),
    "an unknown type": ({"dtype": "int3"}, "the type of conv is 'int3'"),
    "parts of another length": (
        {"parts": (StatePart(what="heads", num=2, width=3),)},
        "its parts take 6 in dimension 1; the two must be equal",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_that_cannot_be_is_refused(case: str) -> None:
    fields, message = TENSORS[case]
    usual = {"name": "conv", "dims": (3, 8), "dtype": "bfloat16", "axis": 1}
    with pytest.raises(InvalidValueError, match=message):
        StateTensor(**{**usual, **fields})  # type: ignore[arg-type]


def test_a_tensor_without_parts_is_known_on_one_rank_only() -> None:
    state = RecurrentState(tensors=(StateTensor(name="ssm", dims=(8, 4), dtype="float32"),))
    assert state.on_rank(1) == state
    with pytest.raises(InvalidValueError, match="ssm does not say which parts 2 ranks divide"):
        state.on_rank(2)
