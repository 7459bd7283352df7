"""The sequential scheduler: what it asks of a cache, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from kvbraid.cache.chunk import ChunkRules
from kvbraid.cache.step import Match, Need
from kvbraid.errors import InvalidValueError, TooLargeError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.sim.scheduler import SequentialScheduler

RULES = ChunkRules(block_size=16, checkpoint_size=16, alignment=16, hash_block_size=16)

NOTHING = Match(0, 0)


@dataclass
class Fit:
    num_fit: int


@dataclass
class Cache:
    """Writes down what it is asked; `capacity` tokens fit into one allocation."""

    found: Match = NOTHING
    capacity: int = 1_000
    calls: list[str] = field(default_factory=list)

    def add(
        self,
        tokens: Sequence[int],
        *,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
    ) -> int:
        del extra, lora_id
        self.calls.append(f"add {len(tokens)}")
        return 7

    def extend(self, request: int, tokens: Sequence[int]) -> None:
        assert request == 7
        self.calls.append(f"extend {list(tokens)}")

    def match(self, request: int) -> Match:
        assert request == 7
        self.calls.append("match")
        return self.found

    def allocate(self, needs: Sequence[Need]) -> Fit:
        (need,) = needs
        junction = "" if need.junction is None else f" junction {need.junction}"
        self.calls.append(f"allocate {need.num_hit_tokens}+{need.num_new_tokens}{junction}")
        return Fit(int(need.num_new_tokens <= self.capacity))

    def release(self, requests: Sequence[int]) -> None:
        assert requests == [7]
        self.calls.append("release")

    def start_step(self) -> None:
        self.calls.append("start")

    def take_work(self) -> None:
        self.calls.append("work")

    def take_events(self) -> list[str]:
        """Every call is an event."""
        events, self.calls = self.calls, []
        return events


def steps(
    cache: Cache, num_prompt_tokens: int, outputs: Sequence[int] = (), max_step_tokens: int = 99
) -> list[list[str]]:
    taken: list[list[str]] = []
    scheduler = SequentialScheduler(
        cache, rules=RULES, max_step_tokens=max_step_tokens, publish=taken.append
    )
    try:
        assert scheduler.run([1] * num_prompt_tokens, outputs) == cache.found.num_tokens
    except TooLargeError:
        taken.append(["refused"])
    return taken


def test_a_prompt_alone_is_one_step_and_its_blocks_are_given_back_before_it_ends() -> None:
    assert steps(Cache(), 10) == [
        ["add 10", "start", "match", "allocate 0+10 junction 0", "work", "release"]
    ]


def test_a_hit_is_adopted_once_and_chunks_end_at_blocks_and_at_the_junction() -> None:
    assert steps(Cache(Match(16, 48)), 70, max_step_tokens=40) == [
        ["add 70", "start", "match", "allocate 16+32 junction 48", "work"],
        ["start", "allocate 0+16", "work"],
        ["start", "allocate 0+6", "work", "release"],
    ]


def test_each_step_generates_a_token_and_the_last_one_is_never_computed() -> None:
    assert steps(Cache(), 10, [5, 6, 7]) == [
        ["add 10", "start", "match", "allocate 0+10 junction 0", "work", "extend [5]"],
        ["start", "allocate 0+1", "work", "extend [6]"],
        ["start", "allocate 0+1", "work", "extend [7]", "release"],
    ]


def test_a_request_that_does_not_fit_is_given_back_and_what_it_did_is_published() -> None:
    assert steps(Cache(capacity=20), 40, max_step_tokens=16) == [
        ["add 40", "start", "match", "allocate 0+16 junction 0", "work"],
        ["start", "allocate 0+16", "work"],
        ["start", "allocate 0+8", "work", "release"],
    ]
    assert steps(Cache(capacity=4), 10) == [
        ["add 10", "start", "match", "allocate 0+10 junction 0", "release"],
        ["refused"],
    ]


def test_an_empty_prompt_is_refused_before_the_cache_sees_it() -> None:
    cache = Cache()
    with pytest.raises(InvalidValueError, match="0 tokens"):
        steps(cache, 0)
    assert cache.calls == []
