"""The 67 models of the catalogue: each config read, and compared with facts found independently.

`tests/fixtures/models/` holds one config per model (cut down to what decides its cache),
`sources.json` (where each text comes from) and `expected.json` (kinds, layer counts, windows and
bytes from a survey of the makers' code and tools, with its confidence).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.models import ModelLayers, kinds_of

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
EXPECTED: Final[dict[str, Any]] = json.loads((FIXTURES / "expected.json").read_text())
SOURCES: Final[dict[str, Any]] = json.loads((FIXTURES / "sources.json").read_text())

# Where the config and the survey disagree: the reason, and what the config says.
DISAGREEMENTS: Final[Mapping[str, tuple[str, list[dict[str, object]]]]] = {
    "ministral-8b-2410": (
        "the survey (confidence D, from memory) says 27 windowed and 9 full layers; the config "
        "has one window for all layers and no list of layer types",
        [
            {
                "kind": "sliding_window",
                "layers": 36,
                "window": 32768,
                "chunk": None,
                "kv_bytes_per_token": 4096,
                "state_bytes": None,
            }
        ],
    ),
}
# Fields whose absence or null is a published way of saying something (one cache for all, or off).
MEANT_BY_ABSENCE: Final = {
    "sliding_window",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "num_attention_groups",
    "attention_other_setting",
}


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return config


def summary(model: ModelLayers) -> list[dict[str, object]]:
    rows = [kind.to_json() for kind in model.kinds]
    return [
        {**row, "layers": len(kind.layers)} for row, kind in zip(rows, model.kinds, strict=True)
    ]


def in_order(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def whole_numbers(
    config: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from whole_numbers(value, (*path, name))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*path, name)


def without(config: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    copy = dict(config)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without(copy[path[0]], path[1:])
    return copy


def kinds_or_refusal(config: Mapping[str, Any]) -> ModelLayers | str:
    try:
        return kinds_of(config)
    except InvalidValueError as refusal:
        return str(refusal)


def test_the_catalogue_has_67_models_each_with_a_config_a_source_and_facts() -> None:
    configs = {path.stem for path in FIXTURES.glob("*.json")} - {"expected", "sources"}
    assert len(configs) == 67
    assert configs == set(EXPECTED) == set(SOURCES)
    assert {each["config"] for each in SOURCES.values()} == {"published", "quoted", "hand-written"}


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - set(DISAGREEMENTS)))
def test_a_config_gives_the_kinds_layer_counts_windows_and_bytes_of_the_survey(name: str) -> None:
    found = summary(kinds_of(load(name)))
    assert in_order(found) == in_order(EXPECTED[name]["kinds"])
    assert sum(int(str(row["layers"])) for row in found) == EXPECTED[name]["layers_with_cache"]


@pytest.mark.parametrize("name", sorted(DISAGREEMENTS))
def test_a_listed_disagreement_is_still_one(name: str) -> None:
    found = summary(kinds_of(load(name)))
    assert in_order(found) == in_order(DISAGREEMENTS[name][1])
    assert in_order(found) != in_order(EXPECTED[name]["kinds"])
    assert EXPECTED[name]["confidence"] in {"C", "D"}, "a well-sourced fact is not overruled here"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_layer_numbers_are_ascending_and_within_the_model(name: str) -> None:
    model = kinds_of(load(name))
    for kind in model.kinds:
        assert list(kind.layers) == sorted(set(kind.layers))
        assert kind.layers[-1] < model.num_layers


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_no_size_can_go_missing_unnoticed(name: str) -> None:
    """Without a field, a config is refused by name, or says what it assumed, or never used it."""
    config = load(name)
    whole = kinds_of(config)
    for path in whole_numbers(config):
        if set(path) & MEANT_BY_ABSENCE:
            continue
        less = kinds_or_refusal(without(config, path))
        if isinstance(less, str):
            assert path[-1] in less
        elif less.kinds != whole.kinds:
            assert path[-1] in less.assumed
