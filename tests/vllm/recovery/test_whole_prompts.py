"""A connector brings a whole prompt: the last token alone is computed, at every length."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.vllm.drop_in_pair import chunked, full, tokens, window
from tests.vllm.engines import Layout
from tests.vllm.recovery.ghost_engine import LAYOUTS, GhostEngine
from tests.vllm.recovery.ghost_worker import truth

BLOCK = 16
GROUPS: dict[str, tuple[tuple[Any, ...], int]] = {
    "full": ((full(),), 64),
    "window 32": ((window(32), full()), 64),
    "window 33": ((window(33), full()), 64),
    "window 40": ((window(40), full()), 64),
    "window 128": ((window(128), full()), 160),
    "windows": ((window(33), window(40), full()), 64),
    "chunks": ((chunked(48), full()), 96),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", GROUPS)
def test_the_last_token_alone_is_computed(name: str, is_async: bool) -> None:
    groups, least = GROUPS[name]
    for num_tokens in range(least, least + 2 * BLOCK):
        engine = GhostEngine(Layout(groups, 200, BLOCK, BLOCK), is_async=is_async)
        engine.connector.offer = lambda request, hit: (request.num_tokens - hit, True)
        prompt = tokens(1, num_tokens)
        engine.add(prompt)
        engine.finish()
        assert engine.outputs["1"] == truth(prompt, 4), num_tokens
        assert engine.recovery.counts.unused_tokens == 0, num_tokens
        loaded = engine.stats["1"].num_external_cached_tokens
        assert loaded in (num_tokens - 1, num_tokens), num_tokens  # vLLM counts either as loaded.
        assert (engine.connector.num_asked, engine.worker.num_garbage_reads) == (1, 0)


def states_engine(name: str, *, is_async: bool, **options: object) -> GhostEngine:
    engine = GhostEngine(LAYOUTS[name], is_async=is_async, options=options)
    engine.connector.offer = lambda request, hit: (request.num_tokens - hit, True)
    return engine


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("name", "interval", "unit"),
    [
        ("states and full", 16, 16),
        ("states and full", 24, 48),
        ("states inside blocks", 16, 64),
    ],
)
def test_a_connector_that_says_where_it_has_states_is_asked_up_to_the_last_one(
    name: str, interval: int, unit: int, is_async: bool
) -> None:
    for num_tokens in (128, 129, 135, 143, 144, 145, 150, 159, 160, 161, 192, 193):
        engine = states_engine(name, is_async=is_async, state_interval_tokens=interval)
        prompt = tokens(1, num_tokens)
        engine.add(prompt)
        engine.finish()
        end = (num_tokens - 1) // unit * unit
        assert engine.outputs["1"] == truth(prompt, 4), num_tokens
        assert engine.stats["1"].num_external_cached_tokens == end, num_tokens
        assert (engine.recovery.counts.unused_tokens, engine.worker.num_garbage_reads) == (0, 0)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_was_loaded_and_given_back_unused_is_counted(is_async: bool) -> None:
    engine = states_engine("states and full", is_async=is_async)
    prompt = tokens(1, 100)
    engine.add(prompt)
    engine.finish()
    assert engine.outputs["1"] == truth(prompt, 4)
    assert engine.recovery.counts.unused_tokens == 100
    # vLLM's registry has the metric, which counts over all engines of a process.
    assert REGISTRY.get_sample_value("kvbraid_unused_tokens_total", {"policy": "recompute"})


def test_a_load_that_is_aborted_counts_as_unused() -> None:
    engine = states_engine("full", is_async=False)
    engine.worker.ends = lambda _: False
    engine.add(tokens(1, 100))
    engine.step()
    engine.abort("1")
    assert engine.recovery.counts.unused_tokens == 100
