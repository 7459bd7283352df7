"""The models of the simulation: as grouped from the configs that they come from."""

import json
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.models import EngineOptions, group_config
from kvbraid.sim.traces.models import CONFIGS, simulated_model

FIXTURES = Path(__file__).parents[3] / "fixtures" / "models"
FIXTURE_OF = {name: name for name in CONFIGS} | {"jamba-mini": "jamba-v0.1"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_name_stands_for_the_groups_of_the_published_config(name: str) -> None:
    path = FIXTURES / f"{FIXTURE_OF[name]}.json"
    published = json.loads(path.read_text())
    grouping = group_config(published, EngineOptions()).grouping
    model = simulated_model(name)
    assert (model.topology, model.block_bytes) == (grouping.topology(), grouping.block_bytes)
    assert simulated_model(str(path)).topology == model.topology


@pytest.mark.parametrize(
    ("name", "alignment", "num_groups", "block_bytes"),
    [
        ("gpt-oss-120b", 16, 2, 589_824),
        ("gemma-3-27b", 16, 7, 1_310_720),
        ("qwen3-next-80b-a3b", 544, 4, 13_369_344),
        ("jamba-mini", 80, 8, 1_310_720),
        ("llama-3.1-8b", 16, 1, 2_097_152),
    ],
)
def test_blocks_have_the_sizes_that_an_engine_gives_them(
    name: str, alignment: int, num_groups: int, block_bytes: int
) -> None:
    model = simulated_model(name)
    assert (model.alignment, len(model.topology.groups)) == (alignment, num_groups)
    assert (model.hash_block_size, model.block_bytes) == (alignment, block_bytes)


def test_groups_of_unequal_blocks_agree_less_often_than_they_are_hashed() -> None:
    model = simulated_model(str(FIXTURES / "gemma-4-31b.json"))
    sizes = {group.block_size for group in model.topology.groups}
    assert (model.hash_block_size, model.alignment) == (min(sizes), max(sizes))
    assert len(sizes) == 2


def test_memory_is_whole_blocks() -> None:
    model = simulated_model("gemma-3-27b")
    assert model.num_blocks(40 * 2**30) == 32_768
    assert model.num_blocks(model.block_bytes - 1) == 0


def test_an_unknown_model_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownError, match="model 'gpt-2' is not known; expected one of gpt-oss"):
        simulated_model("gpt-2")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidValueError, match="model_type"):
        simulated_model(str(tmp_path / "config.json"))
