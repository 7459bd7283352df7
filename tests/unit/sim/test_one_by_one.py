"""One request at a time: what it asks of the cache, in which order."""

from collections.abc import Sequence
from typing import Any

import pytest
from kvbraid.cache import Allocation, CacheManager, Events, Match, Need, Work
from kvbraid.errors import InvalidValueError, TooLargeError
from kvbraid.sim.one_by_one import OneByOne

from tests.unit.cache.caches import config, full, mamba


class Cache(CacheManager):
    """Writes down what it is asked, and what it was asked since the last events."""

    calls: list[str]
    said: list[list[str]]

    def add(self, tokens: Any, **more: Any) -> int:  # noqa: ANN401
        self.calls.append(f"add {len(tokens)}")
        return super().add(tokens, **more)

    def match(self, request: int) -> Match:
        self.calls.append("match")
        return super().match(request)

    def start_step(self) -> None:
        self.calls.append("start")
        super().start_step()

    def allocate(self, needs: Sequence[Need], *, reserved_blocks: int = 0) -> Allocation:
        (need,) = needs
        junction = "" if need.junction is None else f" junction {need.junction}"
        self.calls.append(f"allocate {need.num_hit_tokens}+{need.num_new_tokens}{junction}")
        return super().allocate(needs, reserved_blocks=reserved_blocks)

    def take_work(self, *, caller_frees: bool = False) -> Work:
        self.calls.append("work")
        return super().take_work(caller_frees=caller_frees)

    def extend(self, request: int, tokens: Any, **more: Any) -> None:  # noqa: ANN401
        self.calls.append(f"extend {list(tokens)}")
        super().extend(request, tokens, **more)

    def release(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        self.calls.append("release")
        super().release(requests, step_failed=step_failed)

    def take_events(self) -> Events:
        self.said.append(self.calls)
        self.calls = []
        return super().take_events()


def cache(num_blocks: int = 50) -> Cache:
    made = Cache(config(full(16), mamba(16), num_blocks=num_blocks))
    made.calls, made.said = [], []
    return made


def steps(made: Cache, prompt: Sequence[int], outputs: Sequence[int] = (), most: int = 99) -> Any:  # noqa: ANN401
    made.said.clear()
    OneByOne(made, max_step_tokens=most).run(prompt, outputs)
    made.debug.check_integrity()
    return made.said


def test_a_prompt_alone_is_one_step_and_its_blocks_are_given_back_before_it_ends() -> None:
    assert steps(cache(), range(10)) == [
        ["add 10", "start", "match", "allocate 0+10 junction 0", "work", "release"]
    ]


def test_a_hit_is_adopted_once_and_chunks_end_at_blocks_and_at_the_junction() -> None:
    made = cache()
    steps(made, range(49), most=16)
    states = [blocks[0] for (group, _), blocks in made.debug.cached().items() if group == 1]
    made.pool.forget([b for b in states if made.pool.describe([b])[0].num_tokens > 16])
    assert steps(made, [*range(48), *range(200, 222)], most=40) == [
        ["add 70", "start", "match", "allocate 16+32 junction 48", "work"],
        ["start", "allocate 0+16", "work"],
        ["start", "allocate 0+6", "work", "release"],
    ]


def test_each_step_generates_a_token_and_the_last_one_is_never_computed() -> None:
    assert steps(cache(), range(10), [5, 6, 7]) == [
        ["add 10", "start", "match", "allocate 0+10 junction 0", "work", "extend [5]"],
        ["start", "allocate 0+1", "work", "extend [6]"],
        ["start", "allocate 0+1", "work", "extend [7]", "release"],
    ]


def test_a_request_that_does_not_fit_is_given_back_and_what_it_did_is_published() -> None:
    made = cache(num_blocks=4)
    with pytest.raises(TooLargeError, match="request 0 does not fit"):
        steps(made, range(60), most=16)
    assert made.said == [
        ["add 60", "start", "match", "allocate 0+16 junction 0", "work"],
        ["start", "allocate 0+16", "release", "work"],
    ]


def test_an_empty_prompt_is_refused_before_the_cache_sees_it() -> None:
    made = cache()
    with pytest.raises(InvalidValueError, match="0 tokens"):
        steps(made, [])
    assert made.calls == []
