"""The installed engine forms the recorded groups, and serves only listed architectures."""

import warnings
from typing import Final

import pytest

from tests.architectures import CASES
from tests.docs.models_page import left_out
from tests.vllm.record import answers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of torch and vLLM, while they are imported.
    from vllm.model_executor.models import registry

TEXT: Final = set(registry._TEXT_GENERATION_MODELS) | set(registry._TRANSFORMERS_SUPPORTED_MODELS)
OTHERS: Final = {
    "_EMBEDDING_MODELS",
    "_LATE_INTERACTION_MODELS",
    "_MULTIMODAL_MODELS",
    "_REWARD_MODELS",
    "_SEQUENCE_CLASSIFICATION_MODELS",
    "_SPECULATIVE_DECODING_MODELS",
    "_TOKEN_CLASSIFICATION_MODELS",
    "_TRANSFORMERS_BACKEND_MODELS",
}
"""Lists of architectures that docs/models.md names as a whole."""


@pytest.mark.timeout(900)
def test_the_engine_forms_the_groups_that_are_recorded() -> None:
    found = answers()
    for name, case in CASES.items():
        if "groups" in case:
            recorded = {part: answer for part, answer in case.items() if part != "config"}
            assert found[name] == recorded, name
        else:
            assert "error" in found[name], f"{name} can be built after all"


def test_every_text_architecture_of_the_engine_is_read_or_left_out_by_name() -> None:
    read = {name for case in CASES.values() for name in case["config"]["architectures"]}
    assert TEXT - read == set(left_out())
    assert not read & set(left_out())


def test_the_engine_has_no_list_of_architectures_that_is_not_named() -> None:
    lists = {name for name in vars(registry) if name.endswith("_MODELS")}
    ends = {"_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS", "_VLLM_MODELS"}
    text = {"_TEXT_GENERATION_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS"}
    assert lists - ends - text == OTHERS
