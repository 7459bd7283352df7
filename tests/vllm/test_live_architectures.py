"""Six more architectures live: what the index says, and our cache beside the engine's own.

Each model's groups are what `kvbraid.models` reads from its config. Two engines get the same
prompts one after another: one on its own cache, one on ours. Before each request the index says
how much the first will reuse; then hits, events and outputs of both must be the same. Retention
is the engine's default, off, or every 256 tokens.
"""

from pathlib import Path
from typing import Final

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.models import EngineOptions, group_config, read_config

from tests.tiny_models import ARCHITECTURES, FOLDER
from tests.vllm.live_engine import ENGINE, MAX_OUTPUT, LiveModel, Prompts
from tests.vllm.live_pair import events_of, running_both
from tests.vllm.soak import LIVE_TIMEOUT

POD: Final = PodId("pod0")
OPTIONS: Final = EngineOptions(block_size=32, kernel_block_size=32)


def read_from(folder: Path, num_blocks: int, retention: int | None) -> LiveModel:
    """A live model whose groups are read from its config."""
    topology = group_config(read_config(folder / "config.json"), OPTIONS).grouping.topology()
    return LiveModel(
        folder=folder.name,
        block_size=32,
        num_blocks=num_blocks,
        topology=topology,
        retention=retention,
    )


LIVE: Final = (
    ("cohere2", 210, 0),
    ("cohere2", 210, 256),
    ("exaone_moe", 260, 0),
    ("exaone_moe", 260, None),
    ("mimo_v2_flash", 190, 0),
    ("mimo_v2_flash", 190, 256),
    ("step3p5", 210, 256),
    ("gemma3n_text", 210, None),
    ("exaone4", 210, 0),
)
"""Architecture, blocks of the pool, retention."""


def test_each_tiny_model_is_run() -> None:
    assert {name for name, _, _ in LIVE} == set(ARCHITECTURES)
    assert {retention for _, _, retention in LIVE} == {0, 256, None}


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize(
    ("name", "num_blocks", "retention"), LIVE, ids=lambda each: str(each).lower()
)
def test_hits_events_and_outputs_are_the_engines_and_the_index_knew_the_hits(
    name: str, num_blocks: int, retention: int | None
) -> None:
    model = read_from(FOLDER / name, num_blocks, retention)
    index = FleetIndex()
    index.register(POD, model="tiny", topology=model.topology, engine=ENGINE)
    prompts = Prompts(model, seed=7)
    num_removed = num_hits = num_requests = 0
    outputs: set[tuple[int, ...]] = set()
    with running_both(model) as pair:
        for number, prompt in enumerate(prompts):
            (row,) = index.score(Request(model="tiny", token_ids=prompt)).rows
            expected, answer = pair.generate_together([prompt], MAX_OUTPUT)
            (cached,) = expected.cached
            assert (row.lower, row.upper) == (cached, cached), (
                f"request {number}: {cached} of {row}"
            )
            assert answer.cached == expected.cached, f"request {number}"
            assert list(map(events_of, answer.payloads)) == list(map(events_of, expected.payloads))
            assert answer.outputs == expected.outputs, f"request {number}"
            for payload in expected.payloads:
                applied = index.apply(POD, payload)
                assert not applied.refused
                num_removed += applied.removed
            index.check_integrity()
            outputs.add(tuple(expected.outputs[0]))
            prompts.remember(prompt, expected.outputs[0])
            num_hits += cached > 0
            num_requests += 1
    assert num_removed > 0, "nothing was evicted: the pool is too large to prove anything"
    assert num_hits > num_requests // 4
    assert len(outputs) > num_requests * 3 // 4, "outputs repeat: they tell too little"
