"""The models of the simulation: as grouped from the configs that they come from."""

import json
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.models import CONFIGS, EngineOptions, group_config
from kvbraid.sim.traces.models import simulated_model

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


@pytest.mark.parametrize(
    ("num_ranks", "alignment", "block_bytes"),
    [(1, 544, 13_369_344), (2, 544, 6_684_672), (4, 272, 3_342_336), (8, 144, 1_769_472)],
)
def test_ranks_divide_the_bytes_and_where_there_are_states_the_tokens_of_a_block(
    num_ranks: int, alignment: int, block_bytes: int
) -> None:
    model = simulated_model("qwen3-next-80b-a3b", EngineOptions(num_ranks=num_ranks))
    assert (model.alignment, model.block_bytes) == (alignment, block_bytes)
    assert model.num_ranks == num_ranks
    assert model.cost == simulated_model("qwen3-next-80b-a3b").cost


def test_blocks_have_the_size_that_is_asked_for_if_traces_can_be_cut_so() -> None:
    longer = EngineOptions(block_size=64, kernel_block_size=64)
    assert simulated_model("gpt-oss-120b", longer).alignment == 64
    shorter = EngineOptions(block_size=8, kernel_block_size=8)
    with pytest.raises(InvalidValueError, match=r"^gpt-oss-120b: blocks .* 8 tokens; .* of 16"):
        simulated_model("gpt-oss-120b", shorter)


def test_a_model_is_the_folder_of_its_config_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((FIXTURES / "gpt-oss-20b.json").read_text())
    assert simulated_model(str(tmp_path)).topology == simulated_model("gpt-oss-120b").topology


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
