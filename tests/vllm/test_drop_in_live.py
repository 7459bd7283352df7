"""A real vLLM gives the same hits, events and tokens with our cache as with its own.

Two engines run side by side, each in a process of its own, and get the same prompts, one to four
at a time, from a pool that makes them evict; now and then both forget their cache. Their weights
are the same and make outputs depend on the whole prompt, so that a wrong block shows
(`test_weights_tell.py` says how surely).
"""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from tests.vllm.live_engine import DROP_IN_MODELS, MAX_OUTPUT, LiveModel, Prompts
from tests.vllm.live_pair import events_of, running_both
from tests.vllm.soak import LIVE_TIMEOUT, NUM_REQUESTS


def batches(prompts: Prompts) -> Iterator[list[list[int]]]:
    """Cut a stream of prompts into those that are sent together."""
    random = Random(11)
    stream = iter(prompts)
    while batch := list(islice(stream, random.choice((1, 1, 2, 4)))):
        yield batch


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize("model", DROP_IN_MODELS, ids=lambda model: model.folder)
def test_an_engine_on_our_cache_does_what_it_does_on_its_own(model: LiveModel) -> None:
    num_removed = num_hits = num_requests = 0
    outputs: set[tuple[int, ...]] = set()
    with running_both(model) as pair:
        stream = Prompts(model, seed=7)
        for number, prompts in enumerate(batches(stream)):
            if number % 12 == 11:
                assert pair.reset() == (True, True)
            expected, answer = pair.generate_together(prompts, MAX_OUTPUT)
            assert answer.cached == expected.cached, f"batch {number}"
            events = [events_of(payload) for payload in expected.payloads]
            assert [events_of(payload) for payload in answer.payloads] == events
            assert answer.outputs == expected.outputs, f"batch {number}"
            outputs |= {tuple(output) for output in answer.outputs}
            stream.remember(prompts[-1], expected.outputs[-1])
            num_requests += len(prompts)
            num_hits += sum(cached > 0 for cached in answer.cached)
            num_removed += sum(e["type"] == "BlockRemoved" for batch in events for e in batch[0])
    assert num_requests == NUM_REQUESTS
    assert num_removed > 0, "nothing was evicted: the pool is too large to prove anything"
    assert num_hits > NUM_REQUESTS // 4
    assert len(outputs) > NUM_REQUESTS * 3 // 4, "outputs repeat: they tell too little"
