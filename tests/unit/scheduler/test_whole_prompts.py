"""A tier brings a whole prompt: all that is loaded is used, and at most one block is computed."""

import pytest
from kvbraid.loads import Failures
from kvbraid.scheduler import LoadReport, Offer, Query, Step
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import chunked, full, mamba, window
from tests.unit.scheduler.engines import Engine

BLOCK = 16


def whole(query: Query) -> Offer | None:
    return Offer(len(query.tokens) - query.num_hit_tokens, "host", is_async=True)


def after_its_load(engine: Engine, num_tokens: int) -> tuple[Step, Step]:
    """The step that loads a whole prompt, and the one after the load has ended well."""
    engine.add(range(num_tokens))
    first = engine.schedule()
    assert first is not None
    engine.update(engine.ended([load.number for load in first.loads]))
    second = engine.schedule()
    assert second is not None
    return first, second


def engine_of(*groups: GroupSpec) -> Engine:
    return Engine(*groups, answer=whole, cache={"num_blocks": 1_400}, max_step_tokens=8_192)


@pytest.mark.parametrize(
    ("group", "least"),
    [
        (full(BLOCK), 64),
        (window(32, BLOCK), 64),
        (window(33, BLOCK), 64),
        (window(128, BLOCK), 256),
        (window(1_023, BLOCK), 1_600),
        (window(1_024, BLOCK), 1_600),
        (window(4_097, BLOCK), 4_800),
        (chunked(64, BLOCK), 256),
    ],
    ids=["full", "32", "33", "128", "1023", "1024", "4097", "chunk"],
)
def test_attention_computes_the_last_token_alone_at_every_length(
    group: GroupSpec, least: int
) -> None:
    for num_tokens in range(least, least + 2 * BLOCK):
        engine = engine_of(full(BLOCK), group)
        first, second = after_its_load(engine, num_tokens)
        (load,), (part,) = first.loads, second.scheduled
        assert (part.start, part.num_tokens) == (num_tokens - 1, 1), num_tokens
        assert load.start == 0
        assert load.num_tokens in (num_tokens - 1, num_tokens)
        engine.update()
        engine.run()
        assert engine.said[0][0].prompt == (0, num_tokens - 1, 1)


@pytest.mark.parametrize("groups", [(), (window(128, BLOCK),)], ids=["states", "all three"])
def test_with_states_what_comes_after_the_last_boundary_is_computed_at_every_length(
    groups: tuple[GroupSpec, ...],
) -> None:
    for num_tokens in range(256, 256 + 2 * BLOCK):
        engine = engine_of(full(BLOCK), mamba(BLOCK), *groups)
        first, second = after_its_load(engine, num_tokens)
        (load,), (part,) = first.loads, second.scheduled
        start = (num_tokens - 1) // BLOCK * BLOCK
        assert (load.num_tokens, part.start) == (start, start), num_tokens
        assert [t.position for t in load.targets if t.group == 1] == [start // BLOCK - 1]
        engine.update()
        engine.run()
        assert engine.said[0][0].prompt == (0, start, num_tokens - start)


@pytest.mark.parametrize(
    ("state_ends", "end"),
    [((32, 64, 67, 96), 64), ((32, 95, 96), 95), ((64, 96), 64), ((96,), 0), ((), 0)],
)
def test_a_tier_says_where_it_has_states(state_ends: tuple[int, ...], end: int) -> None:
    def answer(query: Query) -> Offer | None:
        return Offer(96 - query.num_hit_tokens, "host", True, state_ends=state_ends)

    engine = Engine(full(BLOCK), mamba(BLOCK), answer=answer, max_step_tokens=128)
    engine.add(range(96))
    step = engine.schedule()
    assert step is not None
    assert [load.num_tokens for load in step.loads] == [end] * bool(end)
    engine.update(engine.ended([load.number for load in step.loads]))
    engine.run()
    assert engine.said[0][0].prompt == (0, end, 96 - end)
    assert engine.scheduler.ledgers.num_refused_offers == 0


def test_a_state_after_all_but_the_last_token_is_used() -> None:
    def answer(query: Query) -> Offer | None:
        return Offer(69, "host", is_async=True)

    engine = Engine(full(BLOCK), mamba(BLOCK), answer=answer)
    _, second = after_its_load(engine, 70)
    assert (second.scheduled[0].start, second.scheduled[0].num_tokens) == (69, 1)


def test_a_state_right_before_the_last_token_that_fails_late_is_found_by_nobody() -> None:
    """The next step overwrites it. A copy would be in no table: its failure would not reach it."""

    def answer(query: Query) -> Offer | None:
        return Offer(69, "host", is_async=True)

    exact = {"topology": {"hash_block_size": 1, "partial_hits": True, "alignment": BLOCK}}
    engine = Engine(full(BLOCK), mamba(BLOCK), answer=answer, cache=exact)
    after_its_load(engine, 70)
    failures = Failures(places={0: {1: [4]}})
    engine.update([LoadReport(rank=0, failures=failures)])
    assert {group for group, _ in engine.cache.debug.cached()} == {0}
    engine.run()
    assert engine.said[0][0].prompt == (0, 0, 70)


@pytest.mark.parametrize(
    ("group", "num_tokens"),
    [(window(1, BLOCK), n) for n in range(82, 97)] + [(chunked(24, BLOCK), 73)],
    ids=str,
)
def test_no_load_ends_inside_a_block_of_which_the_last_token_reads_nothing(
    group: GroupSpec, num_tokens: int
) -> None:
    engine = engine_of(full(BLOCK), group)
    first, second = after_its_load(engine, num_tokens)
    start = (num_tokens - 1) // BLOCK * BLOCK
    assert (first.loads[0].num_tokens, second.scheduled[0].start) == (start, start)
    engine = Engine(full(BLOCK), group, answer=lambda _: Offer(num_tokens - 1, "host", True))
    engine.add(range(num_tokens))
    step = engine.schedule()
    assert step is not None
    assert (step.loads, engine.scheduler.ledgers.num_refused_offers) == ((), 1)


def test_under_eagle_a_whole_prompt_is_used_as_well() -> None:
    for num_tokens in range(128, 128 + 2 * BLOCK):
        engine = engine_of(full(BLOCK, eagle=True), window(32, BLOCK, eagle=True))
        _, second = after_its_load(engine, num_tokens)
        assert second.scheduled[0].start == num_tokens - 1


def test_a_part_of_a_whole_prompt_that_fails_is_computed() -> None:
    engine = engine_of(full(BLOCK), window(32, BLOCK))
    engine.add(range(95))
    first = engine.schedule()
    assert first is not None
    failures = Failures(places={0: {0: [5]}})
    engine.update([LoadReport(rank=0, ended=[0], failures=failures)])
    engine.run()
    assert engine.said[0][0].prompt == (0, 80, 15)


def test_what_is_loaded_and_not_used_is_counted() -> None:
    engine = engine_of(full(BLOCK), window(32, BLOCK))
    used, aborted = engine.add(range(95)), engine.add(range(100, 164))
    first = engine.schedule()
    assert first is not None
    assert [load.num_tokens for load in first.loads] == [94, 64]
    engine.update([LoadReport(rank=0, ended=[0])])
    engine.abort(aborted)
    assert engine.scheduler.ledgers.num_unused_tokens == 64
    engine.run()
    assert engine.said[used][0].prompt == (0, 94, 1)
    assert engine.scheduler.ledgers.num_unused_tokens == 64
