"""A request ends right inside a block: tiers get the state of that point though nobody goes on."""

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import OffloadingEngine
from tests.vllm.recovery.ghost_engine import LAYOUTS

PROMPT = tokens(1, 96)
END = 80
"""The last boundary of the prompt, inside its second block. A step ends there."""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_state_at_the_end_of_a_request_is_stored_and_loaded(*, is_async: bool) -> None:
    engine = OffloadingEngine(LAYOUTS["states inside blocks"], is_async=is_async, seed=1)
    first = engine.add(PROMPT, 1)
    while first.num_computed_tokens < END:
        engine.step()
    while engine._steps:
        engine.process()
    assert (first.num_computed_tokens, first.num_in_flight_tokens) == (END, 0)
    engine.abort(first.request_id)
    assert engine.scheduler.has_requests(), "an idle engine goes on until it is stored"
    engine.finish()
    assert engine.told() == engine.had()
    assert engine.scheduler.reset_prefix_cache()
    manager = engine.scheduler.kv_cache_manager
    second = engine.add(PROMPT, 4)
    assert engine.offload.match_over(manager.number_of(second)).num_tokens == END
    engine.finish()
    assert len(engine.outputs[second.request_id]) == 4
    assert sum(engine.offload.counts.hits.values()) > 0
    engine.check_integrity()
