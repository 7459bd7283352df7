"""Requests that share blocks whose load failed: one writes them again, the others wait for it."""

from typing import Any

from kvbraid.loads import Failures
from kvbraid.scheduler import Finish, LoadReport, Offer, Query

from tests.unit.cache.caches import full
from tests.unit.scheduler.engines import Engine

STEM = list(range(40))


def offer(query: Query) -> Offer | None:
    """To the first one only; the others hit what it registers."""
    lacks_all = query.num_hit_tokens == 0 and len(query.tokens) > 40
    return Offer(40, "host", is_async=False) if lacks_all else None


def engine_with_waiter(
    *failed: int,
    **options: Any,  # noqa: ANN401 - fields of the options
) -> tuple[Engine, int, int]:
    """Some blocks did not arrive; both requests have read them."""
    options = {"max_step_tokens": 8, **options}
    engine = Engine(full(4), answer=offer, findable="scheduled", **options)
    owner, waiter = engine.add([*STEM, 77], 4), engine.add([*STEM, 88], 4)
    engine.schedule()
    assert engine.cache.blocks(owner)[0][:10] == engine.cache.blocks(waiter)[0][:10]
    failures = Failures(places={owner: {0: failed}})
    assert engine.update([LoadReport(rank=0, ended=[0], failures=failures)]) == []
    return engine, owner, waiter


def scheduled(engine: Engine) -> list[tuple[int, int, int]]:
    step = engine.schedule()
    assert step is not None
    return [(part.request, part.start, part.num_tokens) for part in step.scheduled]


def test_who_waits_goes_on_when_the_owners_step_is_processed_not_when_it_is_scheduled() -> None:
    engine, owner, waiter = engine_with_waiter(9, max_steps_in_flight=2)
    assert scheduled(engine) == [(owner, 36, 5)]
    assert scheduled(engine) == [(owner, 41, 1)]
    engine.update()
    assert scheduled(engine) == [(owner, 42, 1), (waiter, 40, 1)]
    engine.update()
    engine.update()
    engine.run()
    assert len(engine.tokens(owner)) == len(engine.tokens(waiter)) == 4
    assert engine.said[waiter][0].prompt == (40, 0, 1)
    assert engine.said[owner][0].prompt == (0, 36, 5)


def test_who_waits_gives_its_blocks_back_before_somebody_who_runs_does() -> None:
    engine = Engine(
        full(4),
        answer=offer,
        findable="scheduled",
        max_step_tokens=20,
        cache={"num_blocks": 17},
    )
    prompts = range(500, 512), [*STEM, 77], [*STEM, 88], range(3)
    early, owner, waiter, late = (engine.add(prompt, 9) for prompt in prompts)
    engine.schedule()
    failures = Failures(places={owner: {0: range(10)}})
    engine.update([LoadReport(rank=0, ended=[0], failures=failures)])
    assert list(engine.scheduler.inspect().running) == [early, owner, waiter, late]
    engine.schedule()  # The first one needs a block more, and none is free.
    assert list(engine.scheduler.inspect().running) == [early, owner, late]
    engine.update()
    engine.run()
    assert {outputs[-1].finish for outputs in engine.said.values()} == {Finish.LENGTH}
