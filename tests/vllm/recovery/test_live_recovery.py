"""A real vLLM whose loads fail answers as if none had failed.

The connector keeps the bytes of documents and loads them again; a failed load leaves other bytes.
Every group fails alone and together, in the first, the middle and the last block that is needed
and in all, also for requests that share a document. As a control, one corrupted block passes
unreported: each group's first, middle and last one, of each document. So few tokens follow what is
loaded that every sampled token reads each of these blocks itself. The engine's own scheduler is
recorded beside, in its own process: it dies.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import cycle, product
from random import Random
from typing import Any, Final

import pytest

from tests.vllm.live_engine import LiveModel
from tests.vllm.live_pair import SCHEDULER
from tests.vllm.recovery.live_engines import (
    FORMS,
    HYBRIDS,
    TAIL,
    Program,
    compare,
    running,
    tokens,
)
from tests.vllm.soak import IS_SOAK, LIVE_TIMEOUT

NUM_FAULTS: Final = 300 if IS_SOAK else 30
"""A model and load mode."""
NUM_CONTROL_ROUNDS: Final = 5 if IS_SOAK else 1
NUM_DOCUMENTS: Final = 4
BLOCKS: Final = ("first", "middle", "last")
FORMS_OF_REQUESTS: Final = ("request", "failed_recving")


def faults(num_groups: int, random: Random) -> Iterator[dict[str, Any]]:
    """Return faults: every group alone and all together, everywhere; then whole requests."""
    everything = list(range(num_groups))
    alone = [[group] for group in everything]
    for groups, where in product((*alone, everything), (*BLOCKS, "whole")):
        yield {"groups": groups, "where": where, "form": random.choice(FORMS)}
    for form in FORMS_OF_REQUESTS:
        yield {"groups": everything, "where": "whole", "form": form}


def fail_loads(
    program: Program, batches: list[Any], truths: list[Any], num_groups: int, *, is_async: bool
) -> Counter[str]:
    """Let loads fail in every way, as often as it takes; count them, and what comes of them."""
    counts: Counter[str] = Counter()
    load = {"is_async": is_async}
    first = program.answer(batches[0], load | {"fault": None})
    assert first["cached"] == [len(batches[0][0]) - TAIL]
    compare(first, truths[0], counts)
    pairs, random, last = cycle(zip(batches, truths, strict=True)), Random(3), first
    while last["failed"] - first["failed"] < NUM_FAULTS:
        for fault in faults(num_groups, random):
            batch, truth = next(pairs)
            answer = program.answer(batch, load | {"fault": fault})
            assert answer["failed"] > last["failed"], fault
            compare(answer, truth, counts)
            last = answer
    for key, name in (("failed", "failed_loads"), ("recomputed", "recomputed")):
        counts[name] = last[key] - first[key]
    return counts


def control(
    program: Program, documents: list[list[int]], num_groups: int, counts: Counter[str]
) -> None:
    """Let one corrupted block of each load pass, and count the outputs that change."""
    random = Random(2)
    for _ in range(NUM_CONTROL_ROUNDS):
        for document in documents:
            prompt = document + tokens(random, TAIL)
            truth = program.answer([prompt])
            for group, where in product(range(num_groups), BLOCKS):
                fault = {"groups": [group], "where": where, "form": None}
                answer = program.answer([prompt], {"is_async": False, "fault": fault})
                assert answer["cached"] == [len(document)]
                counts["control"] += 1
                counts["control_changed"] += answer["outputs"] != truth["outputs"]


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize("model", HYBRIDS, ids=lambda model: model.folder)
def test_outputs_are_those_of_a_run_without_faults(
    model: LiveModel, seen: dict[str, Counter[str]]
) -> None:
    counts = seen[model.folder] = Counter()
    random = Random(1)
    with running(model, SCHEDULER) as (program, num_groups):
        documents = [tokens(random, 600) for _ in range(NUM_DOCUMENTS)]
        documents = [document[: program.ask(keep=document)["kept"]] for document in documents]
        assert min(map(len, documents)) > 500
        batches = [
            [document + tokens(random, TAIL) for _ in range(size)]
            for document in documents
            for size in (1, 1, 2)  # Two share what the first one loads.
        ]
        truths = [program.answer(batch) for batch in batches]
        for is_async in (False, True):
            of_mode = fail_loads(program, batches, truths, num_groups, is_async=is_async)
            assert of_mode["recomputed"] > 0
            counts += of_mode
        control(program, documents, num_groups, counts)
    assert counts["failed_loads"] >= 2 * NUM_FAULTS
    assert counts["mismatches"] == 0, counts
    assert counts["control"] >= 20
    assert counts["control_changed"] >= 0.95 * counts["control"]


@pytest.mark.timeout(LIVE_TIMEOUT)
def test_the_engines_own_scheduler_dies(stock: dict[str, str]) -> None:
    model = HYBRIDS[0]
    random = Random(1)
    with running(model, None) as (program, _):
        documents = [tokens(random, 600) for _ in range(2)]
        for document in documents:
            program.ask(keep=document)
        fault = {"groups": [0], "where": "first", "form": "flat"}
        prompt = documents[0] + tokens(random, 30)
        assert program.answer([prompt], {"is_async": False, "fault": None})["cached"][0] > 500
        with pytest.raises(ChildProcessError) as died:
            program.answer([prompt], {"is_async": False, "fault": fault})
        stock[model.folder] = str(died.value)
