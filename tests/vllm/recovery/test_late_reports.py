"""vLLM's schedulers are told one to three steps late that a load has failed, in every form.

By then the loaded state or window has been given back, and another request may have its block. Who
was told a token of it ends with an error, and the same prompt asked again is answered right.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.ghost_connector import Load
from tests.vllm.recovery.ghost_engine import LAYOUTS, GhostEngine
from tests.vllm.recovery.ghost_worker import (
    GARBAGE,
    Part,
    Worker,
    as_flat_ids,
    as_group_blocks,
    as_places,
    as_request,
    truth,
)

PROMPT: Final = tokens(1, 200)
OTHERS: Final = [tokens(seed, 200) for seed in (9, 10, 11, 12)]
NUM_LOADED: Final = 160
NUM_TOKENS: Final = 8
MIXES: Final = ("full", "window and full", "chunks and full", "states and full", "four groups")
FORMS: Final = {
    each.__name__: each for each in (as_flat_ids, as_group_blocks, as_places, as_request)
}
Say = Callable[..., None]


class LateWorker:
    """A worker whose first load fails in one block, and which says so steps later."""

    def __init__(self, worker: Worker, form: Say, num_steps: int) -> None:
        self._worker, self._form, self._num_steps = worker, form, num_steps
        self._late: list[tuple[Load, list[Part]]] = []
        worker.fails = lambda _, parts: [] if self._late else self._last_passing(parts)
        worker.says = lambda load, failed, _: self._late.append((load, failed))

    def _last_passing(self, parts: Sequence[Part]) -> list[Part]:
        """The last block of a group that gives blocks back, if there is one: no other block fails,
        so nothing that the request still has tells of it."""
        groups = self._worker.groups
        passing = [part for part in parts if not groups[part.group].kind.is_full]
        return (passing or list(parts))[-1:]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a worker has.
        return getattr(self._worker, name)

    def execute(self, output: Any, loads: Sequence[Load]) -> Any:  # noqa: ANN401 - vLLM's own.
        self._num_steps -= bool(self._late)
        result = self._worker.execute(output, loads)
        if self._late and self._num_steps == 0:
            ((load, failed),) = self._late
            self._form(load, failed, result.kv_connector_output)
        return result


def late_engine(name: str, form: Say, num_steps: int, *, ahead: bool, waits: bool) -> GhostEngine:
    """Return an engine whose first load fails, and which is told steps late."""
    layout = LAYOUTS[name]
    # Room for two requests, so that what one gives back is handed out again at once.
    num_blocks = 2 * len(layout.groups) * (len(PROMPT) // 16 + 2)
    engine = GhostEngine(replace(layout, num_blocks=num_blocks), is_async=ahead)
    engine.connector.offer = lambda request, hit: (
        NUM_LOADED - hit if request.request_id == "1" and hit < NUM_LOADED else 0,
        waits,
    )
    engine.worker = LateWorker(engine.worker, form, num_steps)  # type: ignore[assignment]
    # Until it is told, clients get tokens of garbage.
    engine.check_integrity = lambda: None  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("ahead", [False, True], ids=["one step at a time", "ahead"])
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MIXES)
def test_who_was_told_garbage_ends_and_the_next_answer_is_right(
    name: str, form: str, num_steps: int, waits: bool, ahead: bool
) -> None:
    engine = late_engine(name, FORMS[form], num_steps, ahead=ahead, waits=waits)
    engine.add(PROMPT, NUM_TOKENS)
    while not engine.outputs["1"]:
        engine.step()
    for other in OTHERS:  # They take what is given back.
        engine.add(other, NUM_TOKENS)
    engine.finish()
    assert engine.errors == {"1"} or engine.outputs["1"] == truth(PROMPT, NUM_TOKENS)
    assert engine.errors <= {"1"}
    for number, other in enumerate(OTHERS, 2):
        assert engine.outputs[str(number)] == truth(other, NUM_TOKENS)
    again = engine.add(PROMPT, NUM_TOKENS).request_id
    engine.finish()
    assert engine.outputs[again] == truth(PROMPT, NUM_TOKENS)
    assert GARBAGE in engine.outputs["1"] or "1" not in engine.errors
