"""Our cache and the engine's own manager, operation by operation: every state the same.

One line of JSON says how many operations agreed, and how many configurations had each kind.
"""

import json
from collections import Counter
from typing import Final

import pytest

from tests.vllm.lockstep.configs import NUM_CONFIGS, generate
from tests.vllm.lockstep.ours import Ours
from tests.vllm.lockstep.run import Outcome, run
from tests.vllm.soak import IS_SOAK, LOCKSTEP_TIMEOUT, NUM_OPERATIONS

SEED: Final = int(IS_SOAK)
SHOWN_FAILURES: Final = 5


@pytest.mark.timeout(LOCKSTEP_TIMEOUT)
def test_our_cache_and_the_engines_are_in_lock_step(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        run(generate(number), Ours, num_operations=NUM_OPERATIONS, seed=SEED)
        for number in range(NUM_CONFIGS)
    ]
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    with capsys.disabled():
        print("\n" + json.dumps({"lockstep": _summary(outcomes)}))  # noqa: T201 - the result.
    assert not failures, "\n\n".join(failures[:SHOWN_FAILURES])
    assert sum(outcome.num_engine_failures for outcome in outcomes) <= len(outcomes) // 20
    num_pressed = sum(outcome.num_pressed for outcome in outcomes)
    assert 2 * num_pressed >= sum(outcome.num_operations for outcome in outcomes)


def _summary(outcomes: list[Outcome]) -> dict[str, object]:
    kinds = Counter(
        kind
        for outcome in outcomes
        for kind in sorted({group.kind.value for group in outcome.config.groups})
    )
    return {
        "configs": len(outcomes),
        "operations": sum(outcome.num_operations for outcome in outcomes),
        "mismatches": sum(outcome.failure is not None for outcome in outcomes),
        "early_copies": sum(outcome.num_early_copies for outcome in outcomes),
        "kinds": dict(sorted(kinds.items())),
    }
