"""A real vLLM on a CPU and our index agree on every request, evictions included.

Events go over real ZeroMQ from the engine to a `FleetIndex`; before each request the index says
how many tokens the engine will reuse, and the engine then says how many it did.
"""

from collections.abc import Iterator
from random import Random

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId

from tests.vllm.live_engine import ENGINE, MODELS, LiveModel, running
from tests.vllm.soak import LIVE_TIMEOUT, NUM_REQUESTS

MAX_OUTPUT = 12
POD = PodId("pod0")


class Prompts:
    """Documents asked about again and again, and conversations that go on."""

    def __init__(self, model: LiveModel, seed: int) -> None:
        self._random = Random(seed)
        self._limit = model.max_model_len - MAX_OUTPUT
        self._documents = [self._tokens(900) for _ in range(5)]
        self._last: list[int] = []

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(10, 250) for _ in range(count)]

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(NUM_REQUESTS):
            question = self._tokens(self._random.randrange(1, 200))
            if self._last and self._random.random() < 0.4:
                prompt = self._last + question
            else:
                document = self._random.choice(self._documents)
                prompt = document[: self._random.randrange(64, len(document))] + question
            yield prompt[: self._limit]

    def remember(self, prompt: list[int], output: list[int]) -> None:
        """The next turn may go on from here."""
        self._last = prompt + output


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
