"""vLLM's own cases of failed blocks that two requests share, rebuilt for one to six groups.

The first request loads, the second one hits some of what is loaded, in the same step or in the
next one; blocks that both have fail.
"""

from dataclasses import replace
from typing import Any, Final

import pytest

from tests.reference import resume
from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.expected_starts import Expected, expected, number_of, written_since
from tests.vllm.recovery.mixes import MIXES
from tests.vllm.recovery.rebuilt_engine import (
    NUM_TOKENS,
    RebuiltEngine,
    Report,
    check_untouched,
    groups_that_fail,
    loaded_by,
)

HALF: Final = 200


def reads(engine: RebuiltEngine, request: Any, start: int) -> set[int]:  # noqa: ANN401 - vLLM's own type.
    """Return the blocks that a request reads in a step that starts at a token."""
    tables = engine.cache.blocks(number_of(engine, request))
    return {
        table[position]
        for spec, table in zip(engine.groups, tables, strict=True)
        for position in resume.needed_blocks(replace(spec, eagle=False), start)
        if position < len(table) and table[position]
    }


def held(engine: RebuiltEngine, request: Any) -> set[int]:  # noqa: ANN401 - vLLM's own type.
    return written_since(engine, request, 0)


class Shared:
    """Two requests of which one loads, and what should happen to both."""

    def __init__(self, name: str, common: int, failing: set[int], groups: list[int], ahead: bool):
        mix = MIXES[name]
        self.end = loaded_by(mix)
        self.ahead = ahead
        self.engine = engine = RebuiltEngine(mix, is_async=ahead)
        prompt = tokens(1, NUM_TOKENS)
        self.first = engine.request(prompt, (self.end, False))
        if ahead:
            engine.schedule()
        self.second = engine.request(prompt[:common] + tokens(2, NUM_TOKENS - common))
        engine.schedule()
        self.hit = engine.parts_of(self.second)[0].start if engine.parts_of(self.second) else 0
        self.bad = engine.blocks_of(self.first, groups, failing)
        self._foresee()

    def _foresee(self) -> None:
        engine = self.engine
        tainted = self.bad | written_since(engine, self.first, self.end)
        self.is_hit = bool(self.hit and reads(engine, self.second, self.hit) & tainted)
        if self.is_hit:
            tainted |= written_since(engine, self.second, self.hit)
        self.due = expected(engine, self.first, tainted)
        self.owned: set[int] = set()
        if self.due.in_place:
            again = written_since(engine, self.first, self.due.resume)
            self.owned = again & tainted & held(engine, self.second)
        self.due_second: Expected | None = None
        if self.is_hit:
            self.due_second = expected(engine, self.second, tainted, rewritten=self.owned)

    def fail(self) -> None:
        engine = self.engine
        engine.spoiled = self.bad
        engine.mark()
        engine.use(Report(blocks=self.bad))
        engine.spoiled = set()
        engine.run()

    def check(self) -> None:
        engine = self.engine
        start = engine.start_of(self.first)
        # Who starts over may find more, if the other one has computed what failed meanwhile.
        assert start == self.due.start if self.due.in_place else start >= self.due.start
        if self.due_second is None:
            check_untouched(engine, [self.second])
            return
        start = engine.start_of(self.second)
        if self.due_second.in_place:
            assert start == self.due_second.start
        else:
            assert start >= self.due_second.start
        if self.owned and self.due_second.in_place:
            owner = self.step_of(self.first, start - 1)
            # From token 0 on, the engine has no way to go back in place ahead of the model.
            starts_over = self.ahead and self.due.resume == 0
            assert self.step_of(self.second, start) >= owner + (not starts_over)

    def step_of(self, request: Any, token: int) -> int:  # noqa: ANN401 - vLLM's own type.
        """Return the first step after the report that has a token of a request."""
        return next(
            number
            for number, step in enumerate(self.engine.history)
            for part in step
            if number >= self.engine.since
            and part.name == request.request_id
            and part.start <= token < part.end
        )


@pytest.mark.parametrize(
    ("name", "ahead"),
    [(name, ahead) for name in MIXES for ahead in (False, True)],
)
def test_shared_blocks_are_written_once_more_by_one_request_and_the_other_waits(
    name: str, ahead: bool
) -> None:
    mix = MIXES[name]
    num_hit = 0
    for failing in ({0, HALF - 1}, {HALF // 2, HALF - 1}, {HALF - 1}):
        for groups in groups_that_fail(mix):
            shared = Shared(name, HALF, failing, groups, ahead)
            if shared.bad:
                shared.fail()
                shared.check()
                num_hit += shared.is_hit
    assert num_hit or not {"wide", "latent"} & set(name.split())


@pytest.mark.parametrize("name", MIXES)
def test_a_request_that_shares_all_of_a_load_is_taken_back_too(name: str) -> None:
    mix = MIXES[name]
    end = loaded_by(mix)
    num_hit = num_owned = 0
    for failing in ({0, end - 1}, {HALF, end - 1}, {end - 1}):
        for groups in groups_that_fail(mix):
            shared = Shared(name, end, failing, groups, ahead=True)
            if shared.bad:
                shared.fail()
                shared.check()
                num_hit += shared.is_hit
                num_owned += len(shared.owned)
    # Of a load that ends inside a block no state is found there, so nobody shares it.
    assert num_hit or not mix.loads_whole_blocks
    assert num_owned or not {"wide", "latent"} & set(name.split())


def test_requests_that_go_on_in_copies_of_garbage_are_taken_back_too() -> None:
    """None of their blocks failed or was computed from what failed: they were copied."""
    engine = RebuiltEngine(MIXES["partial hits"], is_async=True)
    prompt = tokens(1, 42)
    first = engine.request(prompt, (32, False))
    engine.schedule()
    tainted = engine.blocks_of(first, [0], {31})
    assert tainted
    engine.preempt(first.request_id)
    second = engine.request(prompt[:40] + tokens(2, 20))
    engine.schedule()
    for request in (first, second):
        assert engine.parts_of(request)[-1].start == 40
        assert tainted.isdisjoint(held(engine, request))
    engine.spoiled = tainted
    engine.mark()
    engine.use(Report(blocks=tainted))
    engine.spoiled = set()
    engine.run()
    assert engine.start_of(first) < 40
    assert engine.start_of(second) <= 40  # What the first one has computed again is found.
