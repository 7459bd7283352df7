"""A load fails, and the report comes when its request has read the block and given it back.

Whatever stands in the block by then, what was computed from it is found by nobody, and a request
that was told a token of it ends with an error. Who got the block meanwhile goes on.
"""

from collections.abc import Callable, Sequence
from typing import Final

import pytest
from kvbraid.loads import Failures, GroupBlock
from kvbraid.scheduler import Finish, Load, LoadReport, Offer, Query, Target
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import full, mamba, window
from tests.unit.scheduler.engines import Engine

PROMPT = list(range(20))
OTHERS = list(range(100, 120))
LOADED = 12
GROUPS = {"states": (full(4), mamba(4)), "windows": (full(4), window(5, 4))}


def by_place(load: Load, targets: Sequence[Target]) -> Failures:
    return Failures(places={load.request: {t.group: [t.position] for t in targets}})


FORMS: Final[dict[str, Callable[[Load, Sequence[Target]], Failures]]] = {
    "places": by_place,
    "pairs": lambda _, ts: Failures(group_blocks=[GroupBlock(t.group, t.block_id) for t in ts]),
    "blocks": lambda _, ts: Failures(blocks=[t.block_id for t in ts]),
    "request": lambda load, _: Failures(requests=[load.request]),
}


def engine_of(groups: Sequence[GroupSpec], *, is_async: bool, late_steps: int) -> Engine:
    """An engine whose first request loads 12 tokens; nobody else does."""

    def answer(query: Query) -> Offer | None:
        if query.request or query.num_hit_tokens:
            return None
        return Offer(num_tokens=LOADED, tier="host", is_async=is_async)

    engine = Engine(
        *groups, answer=answer, cache={"num_blocks": 60}, max_step_tokens=8, late_steps=late_steps
    )
    engine.add(PROMPT, 12)
    return engine


def step(engine: Engine) -> None:
    """One step, in which whatever loads ends well."""
    engine.schedule()
    loads = [load.number for load in engine.scheduler.ledgers.transfers.loads]
    engine.update(engine.ended(loads)) if engine.steps else engine.report(engine.ended(loads))


def passing(engine: Engine) -> list[Target]:
    """The last block that the load has filled of the group that gives blocks back."""
    return [[t for t in engine.loads[0].targets if t.group == 1][-1]]


def take_all(engine: Engine) -> None:
    """Let every free block be handed out to another request and come back."""
    free = engine.cache.pool.take(engine.cache.pool.num_free)
    engine.scheduler.ledgers.released.hand_out(free)
    engine.cache.pool.free(free)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("num_steps", [1, 2, 3])
@pytest.mark.parametrize("is_reused", [False, True], ids=["free", "handed out"])
def test_who_was_told_a_token_of_garbage_ends_and_nothing_of_it_is_found(
    form: str, is_async: bool, kind: str, num_steps: int, is_reused: bool
) -> None:
    engine = engine_of(GROUPS[kind], is_async=is_async, late_steps=num_steps + 1 + is_async)
    for _ in range(num_steps + 1 + is_async):
        step(engine)
    if is_reused:
        take_all(engine)
    assert engine.said[0], "a token was told"
    load = engine.loads[0]
    engine.report([LoadReport(rank=0, failures=FORMS[form](load, passing(engine)))])
    assert engine.said[0][-1].error == "tainted_output"
    again = engine.add(PROMPT)
    engine.run()
    prompt = next(output.prompt for output in engine.said[again] if output.prompt)
    assert prompt.cached <= LOADED  # What was loaded and did not fail may be found.
    if form == "request" or kind == "states":
        assert prompt.cached == 0


@pytest.mark.parametrize("kind", GROUPS)
def test_nothing_of_a_request_that_is_over_is_found_either(kind: str) -> None:
    engine = engine_of(GROUPS[kind], is_async=False, late_steps=50)
    engine.run()
    assert engine.said[0][-1].finish is Finish.LENGTH
    take = passing(engine)
    found = engine.cache.match(engine.cache.add([*PROMPT, 1])).num_tokens
    assert found > LOADED
    engine.report([LoadReport(rank=0, failures=by_place(engine.loads[0], take))])
    assert engine.cache.match(engine.cache.add([*PROMPT, 1])).num_tokens <= LOADED


def test_without_late_reports_nothing_is_remembered_of_it() -> None:
    engine = engine_of(GROUPS["states"], is_async=False, late_steps=0)
    engine.run()
    failures = by_place(engine.loads[0], passing(engine))
    assert engine.report([LoadReport(rank=0, failures=failures)]) == []
    assert engine.cache.match(engine.cache.add([*PROMPT, 1])).num_tokens > LOADED


@pytest.mark.parametrize("form", ["places", "blocks"])
def test_a_long_run_does_not_end_because_its_old_block_is_garbage_under_another(form: str) -> None:
    """Its own load has been over for long, so what is said of the block means who has it now."""
    engine = engine_of(GROUPS["windows"], is_async=False, late_steps=2)
    for _ in range(6):
        step(engine)
    old = passing(engine)[0].block_id
    take_all(engine)

    def answer(query: Query) -> Offer | None:
        return Offer(num_tokens=LOADED, tier="host", is_async=False) if query.request else None

    engine.tiers.answer = answer
    free = engine.cache.pool.take(engine.cache.pool.num_free)
    engine.cache.pool.free([block for block in free if block != old])
    engine.cache.pool.free([old])
    other = engine.add(OTHERS, 4)
    while old not in {t.block_id for t in engine.loads[len(engine.loads) - 1].targets}:
        engine.add(OTHERS, 4)
        step(engine)
        other = engine.loads[len(engine.loads) - 1].request
        assert len(engine.loads) < 9
        OTHERS[0] += 1
    load = engine.loads[len(engine.loads) - 1]
    hit = [target for target in load.targets if target.block_id == old]
    engine.report([LoadReport(rank=0, failures=FORMS[form](load, hit))])
    assert all(output.error is None for output in engine.said[0])
    engine.run()
    assert engine.said[0][-1].finish is Finish.LENGTH
    assert engine.said[other]
