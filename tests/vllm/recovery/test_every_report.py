"""After any report of failed loads, every request is answered as if nothing had failed.

The worker is a ghost (`ghost_worker`): it knows what each block holds, so that a token computed
from garbage is seen at once.
"""

from random import Random
from typing import Any

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.ghost_connector import Load
from tests.vllm.recovery.ghost_engine import LAYOUTS, GhostEngine
from tests.vllm.recovery.ghost_worker import FORMS, Part


@pytest.mark.parametrize("report", FORMS)
@pytest.mark.parametrize("loads_async", [False, True], ids=["in the step", "before it"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_token_is_lost_or_computed_from_garbage(
    name: str,
    is_async: bool,
    loads_async: bool,
    report: Any,  # noqa: ANN401 - vLLM's own types.
) -> None:
    for seed in range(3):
        random = Random(seed)
        engine = GhostEngine(LAYOUTS[name], is_async=is_async)

        def offer(request: Any, hit: int) -> tuple[int, bool]:  # noqa: ANN401
            most = int(request.num_tokens) - hit - 1
            return max(most - most % 32, 0), loads_async

        engine.connector.offer = offer

        def one(_: Load, parts: list[Part], random: Random = random) -> list[Part]:
            return [random.choice(parts)]

        engine.worker.fails = one
        engine.worker.says = report
        prompt = tokens(1, 200)
        for each in (prompt, prompt[:100] + tokens(2, 50), prompt + tokens(3, 60)):
            engine.add(each, 4)
        engine.finish()
        assert [len(output) for output in engine.outputs.values()] == [4, 4, 4]
        assert not engine.errors
        assert engine.recovery.counts.recoveries > 0
        assert loads_async or engine.worker.num_garbage_reads > 0
        for stats in engine.stats.values():
            assert stats.num_cached_tokens + stats.num_computed_tokens == stats.num_prompt_tokens
