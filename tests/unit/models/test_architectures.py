"""Every architecture that we read gives the groups that a real engine was seen to form.

The answers are recorded (`tests/architectures.py`); `make test-vllm` asks the engine again.
"""

from typing import Any

import pytest
from kvbraid.errors import TopologyError
from kvbraid.models import MODEL_TYPES, kinds_of

from tests.architectures import ALIASES, BUILT, CASES, counted, ours


def test_every_type_that_we_read_has_a_case_or_a_reason() -> None:
    with_cases = {case["config"]["model_type"] for case in CASES.values()}
    without = {model_type for types in ALIASES.values() for model_type in types}
    assert with_cases | without == MODEL_TYPES
    assert not with_cases & without


@pytest.mark.parametrize("name", BUILT)
def test_an_architectures_groups_are_those_of_the_engine(name: str) -> None:
    found, expected = ours(CASES[name]), CASES[name]["groups"]
    has_names = all(isinstance(group["layers"], list) for group in expected)
    assert (found if has_names else counted(found)) == expected


@pytest.mark.parametrize("name", BUILT)
def test_a_layer_without_a_cache_reads_the_same_layers_as_in_the_engine(name: str) -> None:
    found = kinds_of(CASES[name]["config"]).to_json()["aliases"]
    assert found == CASES[name].get("aliases", {})


@pytest.mark.parametrize("name", sorted(set(CASES) - set(BUILT)))
def test_an_architecture_that_no_cpu_builds_is_read_all_the_same(name: str) -> None:
    case = CASES[name]
    assert kinds_of(case["config"]).kinds
    if "not grouped" in case["unbuilt"]:
        with pytest.raises(TopologyError, match="packed_groups"):
            ours(case)


def windows_of(name: str) -> list[Any]:
    return [group["window"] for group in ours(CASES[name])]


def test_a_window_that_is_set_holds_for_all_layers_unless_their_types_are_listed() -> None:
    assert windows_of("llama") == [None]
    assert windows_of("llama, window") == [128]
    assert windows_of("llama, window 0") == [None]
    assert windows_of("llama, windows") == [128, None]
    assert windows_of("mixtral, mixed types") == [None]


def test_layers_may_have_windows_of_several_sizes() -> None:
    assert windows_of("exaone_moe") == [64, 64, 128, None]
    assert windows_of("PanguEmbedded, two windows") == [128, 64]


def test_blocks_may_have_heads_of_several_numbers() -> None:
    (group,) = ours(CASES["nemotron-nas"])
    assert group["page_bytes"] == [2048, 4096]
    assert group["layers"] == [0, 2, 3]
