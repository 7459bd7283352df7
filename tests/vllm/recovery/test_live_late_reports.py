"""A real vLLM is told late that a load has failed, when its request has computed tokens from it.

The report comes one to three steps after the load, about each group alone and all of them, in
every form. By then windows and states have given the loaded block back, and others may have it.
Whatever a request answers without an error is right, and so is the same prompt asked again from
what the first one left. On a CPU, vLLM never schedules ahead: test_late_reports.py does.
"""

from collections import Counter
from itertools import cycle, product
from random import Random
from typing import Any, Final

import pytest

from tests.vllm.live_engine import LiveModel
from tests.vllm.live_pair import SCHEDULER
from tests.vllm.recovery.live_engines import (
    FORMS,
    HYBRIDS,
    NEAR_TIE,
    TAIL,
    Program,
    running,
    tokens,
)
from tests.vllm.soak import IS_SOAK, LIVE_TIMEOUT

MODELS: Final = [m for m in HYBRIDS if IS_SOAK or m.folder in {"gemma3", "qwen3next"}]
MODES: Final = {"sync": False, "async": True}
LONG_TAIL: Final = 100
"""Tokens that are computed after the load: states and windows pass what it brought."""


def is_right(got: list[int], truth: dict[str, Any]) -> bool:
    """Whether tokens are the true ones, up to a tie of the two best logits."""
    (expected,), (gaps,) = truth["outputs"], truth["gaps"]
    pairs = enumerate(zip(got, expected, strict=False))
    differing = next((at for at, (one, other) in pairs if one != other), None)
    return differing is None or gaps[differing] < NEAR_TIE


def ask_late(
    program: Program, prompt: list[int], truth: dict[str, Any], loads: dict[str, Any]
) -> Counter[str]:
    """Ask with a load that fails, and again from what is left; count what is wrong."""
    first = program.answer([prompt], loads)
    again = program.ask(
        prompts=[prompt], max_tokens=len(truth["outputs"][0]), loads=None, is_warm=1
    )
    is_error = first["ends"] == ["error"]
    return Counter(
        requests=2,
        errors=is_error,
        wrong=not (is_error or is_right(first["outputs"][0], truth)),
        wrong_again=not is_right(again["outputs"][0], truth) or again["ends"] != ["length"],
        hit_again=again["cached"][0],
    )


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.folder)
def test_what_is_answered_is_right_and_so_is_the_next_answer(
    model: LiveModel, mode: str, late: dict[str, Counter[str]]
) -> None:
    counts = late[f"{model.folder}, {mode}"] = Counter()
    is_async = MODES[mode]
    random = Random(1)
    with running(model, SCHEDULER) as (program, num_groups):
        documents = [tokens(random, 600) for _ in range(2)]
        documents = [document[: program.ask(keep=document)["kept"]] for document in documents]
        prompts = [
            document + tokens(random, n) for document in documents for n in (TAIL, LONG_TAIL)
        ]
        asked = cycle([(prompt, program.answer([prompt])) for prompt in prompts])
        groups = [*([group] for group in range(num_groups)), list(range(num_groups))]
        forms = cycle([*FORMS, "request"])
        for own, num_steps in product(groups, (1, 2, 3)):
            for _ in range(2):
                fault = {"groups": own, "where": "last", "form": next(forms)}
                loads = {"is_async": is_async, "fault": fault | {"num_late_steps": num_steps}}
                counts.update(ask_late(program, *next(asked), loads))
    assert counts["errors"], "some requests had been told a token"
    assert counts["wrong"] == counts["wrong_again"] == 0, counts
