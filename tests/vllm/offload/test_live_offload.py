"""A real vLLM that offloads blocks answers as one whose device never forgets, and hits more.

The same prompts go to three engines, one after the other: ours with a small pool, host memory and
disk; the rival with the same pool and host memory; and one without a connector that keeps
everything on its device. Bytes of blocks are compared in the engine, as it moves them. Then one
loaded block of each load is overwritten as a control, and a second engine starts on the disk. The
index of a fleet hears what ours publishes, and says what each prompt will hit before it is asked.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, product
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.vllm.live_engine import Prompts
from tests.vllm.offload.live_engines import (
    HOST_BYTES,
    OFFLOAD_MODELS,
    OURS,
    RIVAL,
    RIVAL_EXTRA,
    Engine,
    OffloadModel,
    running,
)
from tests.vllm.recovery.live_engines import TAIL, compare, tokens
from tests.vllm.soak import LIVE_TIMEOUT

BETWEEN_FORGETTING: Final = 7
BETWEEN_TOGETHER: Final = 10
NUM_TOGETHER: Final = 4
NUM_CONTROLS: Final = 24
NUM_AGAIN: Final = 10
LAYOUTS: Final = ("LBHNC", "BLHNC")


def extra(directory: Path) -> dict[str, Any]:
    return {
        "host_bytes": HOST_BYTES,
        "disk_directory": str(directory),
        "disk_bytes": 1_000_000_000,
    }


class Trio:
    """Three engines that are asked the same: ours, the rival, and one that never forgets.

    `is_exact`: outputs do not depend on where steps have ended. With states in half precision they
    do, so there they are compared with those of the same engine from resident blocks (`control`).
    """

    def __init__(
        self, engines: tuple[Engine, Engine, Engine], counts: Counter[str], *, is_exact: bool
    ) -> None:
        self.ours, self._rival, self._truth = engines
        self._is_exact = is_exact
        self._counts = counts
        self._pool = ThreadPoolExecutor(3)

    def answer(self, *prompts: list[int]) -> list[list[int]]:
        """Compare the answers to prompts that come together; return the right ones."""
        engines = (self.ours, self._rival, self._truth)
        said, theirs, truth = self._pool.map(lambda each: each.answer(*prompts), engines)
        found: Counter[str] = Counter()
        compare(said, truth, found)
        if not self._is_exact:
            found["other_steps"] = found.pop("mismatches", 0)
        self._counts.update(found)
        self._counts["requests"] += len(prompts)
        if len(prompts) == 1:
            hit, rival = said["cached"][0], theirs["cached"][0]
            self._counts["hit_tokens"] += hit
            self._counts["rival_hit_tokens"] += rival
            self._counts["fewer"] += hit < rival
            note_prediction(said, self._counts)
        outputs: list[list[int]] = truth["outputs"]
        return outputs

    def forget(self) -> None:
        for each in (self.ours, self._rival):
            each.forget()


def note_prediction(said: dict[str, Any], counts: Counter[str]) -> None:
    """Compare the hit of the one prompt that was answered with what was said of it before."""
    ((lower, upper, expected),), (hit,) = said["predicted"], said["cached"]
    assert lower == upper == hit, said
    counts["asked"] += 1
    counts["predicted"] += expected == hit


def live(trio: Trio, which: OffloadModel) -> list[list[int]]:
    """Ask about documents again and again; devices forget, and hold too little."""
    prompts, random = Prompts(which.model, seed=1), Random(2)
    asked: list[list[int]] = []
    for number, prompt in enumerate(prompts, 1):
        (output,) = trio.answer(prompt)
        prompts.remember(prompt, output)
        asked.append(prompt)
        if number % BETWEEN_FORGETTING == 0:
            trio.forget()
        if number % BETWEEN_TOGETHER == 0:
            trio.answer(*(prompt[:1_000] + tokens(random, 60) for _ in range(NUM_TOGETHER)))
    return asked


def control(ours: Engine, counts: Counter[str]) -> None:
    """Compare what is loaded with what is resident; then let one corrupted block pass."""
    random = Random(4)
    documents = [tokens(random, 600) for _ in range(3)]
    for document in documents:
        ours.answer(document)
    places = cycle(product(range(ours.num_groups), ("first", "middle", "last")))
    for number, place in zip(range(NUM_CONTROLS), places, strict=False):
        prompt = documents[number % len(documents)] + tokens(random, TAIL)
        ours.answer(prompt)
        resident = ours.answer(prompt)
        ours.forget()
        loaded = ours.answer(prompt)
        assert loaded["cached"] == resident["cached"]
        compare(loaded, resident, counts)
        ours.forget()
        before = ours.ask(counts=True)["seen"].get("spoilt", 0)
        ours.ask(corrupt=place)
        said = ours.answer(prompt)
        assert ours.ask(counts=True)["seen"]["spoilt"] == before + 1, place
        counts["control"] += 1
        counts["control_changed"] += said["outputs"] != loaded["outputs"]


def begin_again(
    second: Engine,
    again: list[tuple[list[int], dict[str, Any]]],
    records: dict[str, str],
    counts: Counter[str],
) -> None:
    """Ask an engine that has just started what one that was killed has left on disk."""
    second.ask(records=records)
    second.ask(drain=True)  # It tells what the disk has.
    for prompt, right in again:
        said = second.answer(prompt)
        second.forget()
        counts["second_engine_hits"] += said["cached"][0] > 0
        note_prediction(said, counts)
        assert said["cached"] == right["cached"]
        compare(said, right, counts)
    last = second.ask(counts=True)
    counts["loaded_blocks"] += last["seen"]["loaded"]
    counts["byte_mismatches"] += last["seen"]["byte_mismatches"]
    assert last["seen"]["promote_items"] > 0


@pytest.mark.timeout(3 * LIVE_TIMEOUT)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", OFFLOAD_MODELS, ids=lambda which: which.model.folder)
def test_outputs_are_those_of_a_device_that_never_forgets(
    which: OffloadModel,
    layout: str,
    tmp_path: Path,
    seen: dict[tuple[str, str], Counter[str]],
) -> None:
    counts = seen[which.model.folder, layout] = Counter()
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        starts = (
            running(which, OURS, extra(tmp_path), layout=layout),
            running(which, RIVAL, RIVAL_EXTRA),
            running(which, None),
        )
        ours, rival, truth = pool.map(stack.enter_context, starts)
        is_exact = which.model.dtype == "float32"
        asked = live(Trio((ours, rival, truth), counts, is_exact=is_exact), which)
        last = ours.ask(counts=True)
        counts["loaded_blocks"] = last["seen"]["loaded"]
        counts["moved"] = last["seen"]["load_items"]
        counts["rival_moved"] = rival.ask(counts=True)["seen"]["loaded"]
        counts["byte_mismatches"] = last["seen"]["byte_mismatches"]
        again = [(prompt, ours.answer(prompt)) for prompt in asked[-NUM_AGAIN:]]
        records = ours.ask(records={})
        control(ours, counts)
    with running(which, OURS, extra(tmp_path), layout=layout) as second:
        begin_again(second, again, records, counts)
    assert counts["loaded_blocks"] > 100
    assert counts["byte_mismatches"] == 0
    assert last["seen"]["unknown"] == 0
    assert counts["mismatches"] == 0, counts
    assert counts["fewer"] == 0, counts
    assert counts["predicted"] == counts["asked"], counts
    assert counts["control_changed"] >= 0.95 * counts["control"], counts
    assert counts["second_engine_hits"] == NUM_AGAIN
