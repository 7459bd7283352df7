"""Defects of the released engine after failed loads, each a test of ours.

A request loads 160 of 200 tokens in its first step, and its fourth block (in the first group that
has one) fails. The engine's own scheduler is run beside ours where it shows what the defect is.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.ghost_connector import Load
from tests.vllm.recovery.ghost_engine import LAYOUTS, GhostEngine
from tests.vllm.recovery.ghost_worker import (
    GARBAGE,
    Part,
    as_flat_ids,
    as_places,
    next_token,
    prefix_hashes,
)

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

PROMPT: Final = tokens(1, 200)
NUM_LOADED: Final = 160
MIXES: Final = ("full", "window and full", "chunks and full", "states and full", "four groups")
SCHEDULINGS: Final = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
EVERY_MIX: Final = pytest.mark.parametrize("name", MIXES)


def engine_of(name: str, *, is_async: bool = False, **more: Any) -> GhostEngine:  # noqa: ANN401
    """Return an engine whose first load fails."""
    engine = GhostEngine(LAYOUTS[name], is_async=is_async, **more)
    engine.connector.offer = lambda request, hit: (
        NUM_LOADED - hit if request.num_tokens > NUM_LOADED > hit else 0,
        False,
    )
    engine.worker.fails = first_only()
    engine.worker.says = as_flat_ids if name == "full" else as_places
    return engine


def first_only() -> Any:  # noqa: ANN401 - a function of loads.
    """Fail one block of the first load: the fourth in the group that has the most."""
    left = [1]

    def fails(load: Load, parts: list[Part]) -> list[Part]:
        del load
        if not left:
            return []
        left.pop()
        groups = [part.group for part in parts]
        largest = [part for part in parts if part.group == max(groups, key=groups.count)]
        return largest[3:4]

    return fails


def step_once(engine: GhostEngine) -> None:
    """Let the first step, with the failed load, be processed."""
    engine.step()
    if engine.scheduler.scheduler_config.async_scheduling:
        engine.step()


@SCHEDULINGS
@EVERY_MIX
def test_after_an_abort_the_invalid_block_is_found_by_nobody(name: str, is_async: bool) -> None:
    engine = engine_of(name, is_async=is_async)
    engine.add(PROMPT)
    step_once(engine)
    engine.abort("1")
    assert engine.hit(PROMPT) <= 48
    engine.connector.offer = lambda *_: (0, False)
    engine.add(PROMPT)
    engine.finish()
    assert len(engine.outputs["3"]) == 4
    stock = engine_of("full", kind=Scheduler)
    stock.add(PROMPT)
    step_once(stock)
    stock.abort("1")
    assert stock.hit(PROMPT) == 192, "the engine's own no longer finds it"


@SCHEDULINGS
@EVERY_MIX
def test_after_a_preemption_the_request_does_not_find_its_own_invalid_block(
    name: str, is_async: bool
) -> None:
    engine = engine_of(name, is_async=is_async, threshold=32)
    request = engine.add(PROMPT)
    engine.add(tokens(2, 30))  # With others waiting, prompts are computed in chunks.
    step_once(engine)
    if request in engine.scheduler.running:
        engine.preempt("1")
    engine.finish()
    assert len(engine.outputs["1"]) == 4


def sharing(name: str, *, is_async: bool) -> tuple[GhostEngine, Any, Any]:
    """Return an engine with two requests that share the failed block, which is known by now."""
    engine = engine_of(name, is_async=is_async, threshold=16)
    requests = (engine.add(PROMPT), engine.add(PROMPT + tokens(2, 30)))
    step_once(engine)
    return (engine, *requests)


@SCHEDULINGS
@EVERY_MIX
def test_a_sharer_waits_until_the_owner_has_computed_the_block(name: str, is_async: bool) -> None:
    engine, owner, sharer = sharing(name, is_async=is_async)
    counts = engine.recovery.counts.requests
    if name == "full":  # The other mixes' windows and states are kept at ends of prompts alone.
        assert sum(counts.values()) == 2, "nothing was shared"
        assert counts["rewind"] == 2
        processed: list[int] = []
        while not processed or "2" not in engine.step().num_scheduled_tokens:
            processed.append(owner.num_computed_tokens - owner.num_in_flight_tokens)
        assert processed[-1] >= 64 or sharer.num_computed_tokens <= 64
    engine.finish()
    assert [len(output) for output in engine.outputs.values()] == [4, 4]


@SCHEDULINGS
@EVERY_MIX
def test_if_the_owner_is_aborted_the_sharer_does_not_read_garbage(
    name: str, is_async: bool
) -> None:
    engine, _, sharer = sharing(name, is_async=is_async)
    engine.abort("1")
    assert not engine.recovery.is_waiting(sharer)
    engine.finish()
    assert len(engine.outputs["2"]) == 4


@EVERY_MIX
def test_no_token_of_a_step_in_flight_is_told(name: str) -> None:
    engine = engine_of(name, is_async=True)
    request = engine.add(PROMPT)
    engine.step()
    engine.step()
    assert engine.outputs["1"] == []
    assert request.num_output_placeholders == 0
    engine.finish()
    assert len(engine.outputs["1"]) == 4
    stock = engine_of("full", is_async=True, kind=AsyncScheduler)
    stock.add(PROMPT)
    stock.step()
    stock.step()
    stock.process()
    assert GARBAGE in stock.outputs["1"], "the engine's own no longer tells it"


def blocks_told(engine: GhostEngine) -> Iterator[Any]:
    for batch in engine.published:
        yield from batch.events


@SCHEDULINGS
@EVERY_MIX
def test_what_was_announced_and_never_became_valid_is_retracted(name: str, is_async: bool) -> None:
    engine = engine_of(name, is_async=is_async)
    engine.add(PROMPT)
    step_once(engine)
    engine.abort("1")
    engine.process() if is_async else engine.step()
    found = set()
    for event in blocks_told(engine):
        if type(event).__name__ == "BlockStored":
            found |= {(event.group_idx, each) for each in event.block_hashes}
        else:
            found -= {(event.group_idx, each) for each in event.block_hashes}
    cache = engine.scheduler.kv_cache_manager.cache
    infos = cache.pool.describe(list(range(1, cache.config.num_blocks)))
    assert len(found) == sum(info.block_hash is not None for info in infos)
    assert sum(type(event).__name__ == "BlockRemoved" for event in blocks_told(engine)) > 0


@SCHEDULINGS
@EVERY_MIX
def test_cached_tokens_are_those_that_were_not_computed_again(name: str, is_async: bool) -> None:
    engine = engine_of(name, is_async=is_async)
    engine.add(PROMPT)
    engine.finish()
    stats = engine.stats["1"]
    recomputed = engine.recovery.counts.recomputed_tokens
    assert stats.num_cached_tokens == NUM_LOADED - recomputed
    assert stats.num_cached_tokens + stats.num_computed_tokens == len(PROMPT)
    assert 0 < recomputed <= NUM_LOADED


@EVERY_MIX
def test_flat_ids_are_recovered_from_in_hybrids(name: str) -> None:
    engine = engine_of(name)
    engine.worker.says = as_flat_ids
    engine.add(PROMPT)
    engine.finish()
    assert engine.recovery.counts.recoveries == 1
    if name != "full":
        stock = engine_of(name, kind=Scheduler)
        stock.worker.says = as_flat_ids
        stock.add(PROMPT)
        with pytest.raises(RuntimeError, match="multiple KV cache groups"):
            stock.step()


def test_the_policy_fail_ends_the_affected_requests_only() -> None:
    for is_async in (False, True):
        engine = engine_of("window and full", is_async=is_async, policy="fail")
        engine.add(PROMPT)
        engine.add(tokens(9, 100))
        engine.finish()
        assert engine.errors == {"1"}
        assert engine.outputs["1"] == []
        assert len(engine.outputs["2"]) == 4
        assert engine.hit(PROMPT) <= 48


@SCHEDULINGS
def test_a_report_that_comes_after_a_token_was_told_ends_the_request(is_async: bool) -> None:
    engine = engine_of("window and full", is_async=is_async)
    late: list[tuple[Load, list[Part]]] = []
    engine.worker.says = lambda load, failed, _: late.append((load, failed))
    request = engine.add(PROMPT, 12)
    while not request.num_output_tokens:
        output = engine.scheduler.schedule()
        loads, engine.connector.loads = engine.connector.loads, []
        result = engine.worker.execute(output, loads)
        if request.num_output_tokens or not late:
            continue
        engine.scheduler.update_from_output(output, result)
    output = engine.scheduler.schedule()
    result = engine.worker.execute(output, [])
    ((load, failed),) = late
    as_places(load, failed, result.kv_connector_output)
    said = engine.scheduler.update_from_output(output, result)
    (ended,) = [each for client in said.values() for each in client.outputs]
    assert (str(ended.finish_reason), ended.new_token_ids) == ("error", [])
    assert engine.recovery.counts.requests == {"tainted_output": 1}
    assert request.num_output_tokens == 1
    assert engine.hit(PROMPT) <= 48


def test_a_retry_asks_the_connector_again_and_then_no_more() -> None:
    engine = engine_of("full", options={"policy": "retry", "retries": 2})
    engine.worker.fails = lambda _, parts: parts[-1:]
    engine.add(PROMPT)
    engine.finish()
    assert engine.connector.num_asked == 3
    assert len(engine.outputs["1"]) == 4


def test_the_load_in_flight_of_a_request_that_ended_with_an_error_may_fail_too() -> None:
    engine = engine_of("full", is_async=True, policy="fail")
    engine.connector.offer = lambda request, hit: (
        160 - hit if request.num_tokens > 96 else 64,
        False,
    )
    engine.worker.fails = lambda _, parts: parts[3:4]
    engine.add(PROMPT[:96])
    engine.step()
    engine.add(PROMPT)  # It finds all of the first one, of which a block has failed.
    engine.finish()
    assert engine.errors == {"1", "2"}
    engine.connector.offer = lambda *_: (0, False)
    engine.add(PROMPT[:140])
    engine.finish()
    assert engine.hit(PROMPT) == 144, "the block after 144 tokens failed"


def test_a_connector_that_keeps_failing_is_not_asked_for_a_while() -> None:
    engine = engine_of("full", options={"tier_cooldown_s": 3_600})
    engine.worker.fails = lambda _, parts: parts[-1:]
    for number in range(5):
        engine.add(tokens(number, 200))
        engine.finish()
    assert engine.connector.num_asked == 3
    assert engine.recovery.load_gate.num_cooling == 1


def test_the_harness_tells_garbage_from_tokens() -> None:
    assert next_token(prefix_hashes(PROMPT)[-1]) != GARBAGE
    engine = engine_of("full")
    engine.worker.says = lambda *_: None
    engine.add(PROMPT)
    with pytest.raises(AssertionError, match="computed from garbage"):
        engine.finish()
