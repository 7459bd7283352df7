"""A real vLLM on a CPU and our index agree on every request, evictions included.

Events go over real ZeroMQ from the engine to a `FleetIndex`; before each request the index says
how many tokens the engine will reuse, and the engine then says how many it did.
"""

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId

from tests.vllm.live_engine import ENGINE, MAX_OUTPUT, MODELS, LiveModel, Prompts, running
from tests.vllm.soak import LIVE_TIMEOUT, NUM_REQUESTS

POD = PodId("pod0")


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.folder)
def test_every_answer_equals_the_engines_own_count(model: LiveModel) -> None:
    index = FleetIndex()
    index.register(POD, model="tiny", topology=model.topology, engine=ENGINE)
    prompts = Prompts(model, seed=7)
    num_removed = num_hits = 0
    with running(model) as engine:
        for number, prompt in enumerate(prompts):
            (row,) = index.score(Request(model="tiny", token_ids=prompt)).rows
            cached, output, payloads = engine.generate(prompt, MAX_OUTPUT)
            assert (row.lower, row.upper) == (cached, cached), f"request {number}"
            for payload in payloads:
                applied = index.apply(POD, payload)
                assert not applied.refused
                num_removed += applied.removed
            index.check_integrity()
            num_hits += cached > 0
            prompts.remember(prompt, output)
    assert num_removed > 0, "nothing was evicted: the pool is too large to prove anything"
    assert num_hits > NUM_REQUESTS // 4
