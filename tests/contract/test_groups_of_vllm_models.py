"""A pod of vLLM whose model is known: nothing is promised until each of its groups has spoken."""

import json
from pathlib import Path
from typing import Final

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.spec_mapping import pod_from_mapping

from tests.contract.prompts import FULL, MODEL, POD, TEXT, Group, answer, exactly, tell

MODELS: Final = Path(__file__).parents[1] / "fixtures" / "models"
STATE: Final = Group(idx=1, kind="mamba", block=64)
WINDOW: Final = Group(idx=1, kind="sliding_window", window=128)
IN_FULL: Final = Group(idx=1, kind="full_attention", window=128)


def a_pod(model: str) -> FleetIndex:
    """A pod whose groups are learned, and whose model's config.json is given."""
    topology, engine = pod_from_mapping({}, json.loads((MODELS / f"{model}.json").read_text()))
    index = FleetIndex()
    index.register(POD, model=MODEL, topology=topology, engine=engine)
    return index


def test_states_that_are_too_large_for_the_first_prompts_are_waited_for() -> None:
    index = a_pod("qwen3-next-80b-a3b")
    tell(index, TEXT.stored(FULL, range(3)))
    assert answer(index) == (0, 48), "the engine finds no state, and reuses nothing"
    tell(index, TEXT.stored(FULL, range(3, 4)), TEXT.stored(STATE, range(1)))
    assert answer(index) == exactly(64)


@pytest.mark.parametrize("second", [WINDOW, IN_FULL, Group(idx=1, kind="sliding_window")])
def test_a_window_has_spoken_in_whichever_form_its_engine_keeps_it(second: Group) -> None:
    index = a_pod("gpt-oss-20b")
    tell(index, TEXT.stored())
    assert answer(index) == (0, 1024)
    tell(index, TEXT.stored(second))
    assert answer(index) == exactly(1024)


def test_full_attention_is_waited_for_too() -> None:
    index = a_pod("gpt-oss-20b")
    tell(index, TEXT.stored(Group(idx=0, kind="sliding_window", window=128)))
    assert answer(index) == (0, 1024)


def test_a_model_of_full_attention_alone_is_exact_at_once() -> None:
    index = a_pod("qwen3-32b")
    tell(index, TEXT.stored())
    assert answer(index) == exactly(1024)
