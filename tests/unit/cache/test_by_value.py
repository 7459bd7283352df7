"""What retention by value promises to users; `test_by_value` of `differential` says all the rest.

Blocks have 4 tokens. Lives of requests are those of the smallest engine, which ends steps where
the cache asks for it; so a state is there at every multiple of the interval, at the end of a
prompt and at a junction.
"""

from collections.abc import Sequence
from itertools import count

import pytest
from kvbraid.cache import (
    ByValue,
    CacheConfig,
    CacheManager,
    Dense,
    EvictionPolicy,
    Interval,
    Retention,
)
from kvbraid.errors import InvalidValueError
from kvbraid.models import PrefillCost
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

UNIT = 4
STATE = (full(UNIT), mamba(UNIT))
WINDOW = (full(UNIT), window(9, UNIT))


class Engine:
    """A cache, and requests that live in it one after the other, whole lives."""

    def __init__(self, config: CacheConfig, *, max_step_tokens: int = 1024) -> None:
        self.cache = CacheManager(config)
        self._scheduler = OneByOne(self.cache, max_step_tokens=max_step_tokens)
        self._fresh = count(1_000_000, 1_000)

    def run(self, prompt: Sequence[int], outputs: Sequence[int] = ()) -> int:
        """Return how many tokens were reused."""
        hit = self._scheduler.run(prompt, outputs)
        self.cache.debug.check_integrity()
        return hit

    def press(self, num_tokens: int) -> None:
        """Run a prompt that nothing shares."""
        start = next(self._fresh)
        assert self.run(range(start, start + num_tokens)) == 0

    def resume(self, tokens: Sequence[int]) -> int:
        """Return where a request that goes on after `tokens` would resume; nothing changes."""
        request = self.cache.add([*tokens, 999_999])
        hit = self.cache.match(request).num_tokens
        self.cache.release([request])
        return hit


def engine(*groups: GroupSpec, interval: int = 0, num_blocks: int = 200) -> Engine:
    retention = ByValue(policy=EvictionPolicy.VALUE, interval=interval)
    return Engine(config(*groups, num_blocks=num_blocks, retention=retention))


def session(number: int, num_tokens: int) -> list[int]:
    """Tokens that no other session has."""
    return list(range(number * 10_000, number * 10_000 + num_tokens))


# ---- the second and the third request of a shared prefix ------------------------------------


def siblings(groups: Sequence[GroupSpec], retention: Retention) -> list[int]:
    """What three requests reuse that share 22 tokens and differ in the 9 after them."""
    lives = Engine(config(*groups, num_blocks=200, retention=retention))
    return [lives.run([*range(22), *session(1 + branch, 9)]) for branch in range(3)]


@pytest.mark.parametrize(
    ("groups", "retention", "hits"),
    [
        pytest.param(STATE, Interval(0), [0, 0, 20], id="states-sparse"),
        pytest.param(
            STATE,
            ByValue(policy=EvictionPolicy.VALUE, interval=8),
            [0, 16, 20],
            id="states-by-value",
        ),
        pytest.param(WINDOW, Interval(0), [0, 0, 20], id="windows-sparse"),
        pytest.param(
            WINDOW,
            ByValue(policy=EvictionPolicy.VALUE, interval=8),
            [0, 20, 20],
            id="windows-by-value",
        ),
    ],
)
def test_the_second_of_a_shared_prefix_hits_and_the_third_hits_exactly(
    groups: Sequence[GroupSpec], retention: Retention, hits: list[int]
) -> None:
    """States: the last interval at or below the branch. Windows: the branch, while all is there.

    Sparse retention keeps neither before it has seen the branch.
    """
    assert siblings(groups, retention) == hits


# ---- who goes first -------------------------------------------------------------------------


def test_a_session_goes_as_a_whole_before_any_piece_of_the_next() -> None:
    """Five equal sessions, and one block of pressure after the other."""
    lives = engine(*STATE, interval=8, num_blocks=70)
    sessions = [session(number, 33) for number in range(1, 6)]
    for tokens in sessions:
        lives.run(tokens)
    seen = set()
    for _ in range(40):
        hits = [lives.resume(tokens) for tokens in sessions]
        assert set(hits) <= {0, 32}, hits
        seen.add(hits.count(32))
        lives.press(5)
    assert seen >= {1, 2, 3, 4, 5}, "one session at a time"


def test_of_equal_sessions_those_stay_that_are_used_again() -> None:
    lives = engine(*STATE, num_blocks=50)
    sessions = [session(number, 41) for number in range(1, 4)]
    for tokens in sessions:
        lives.run(tokens)
    assert lives.run([*sessions[1][:40], 7]) == 40
    for _ in range(12):
        lives.press(21)
    assert [lives.resume(tokens) for tokens in sessions] == [0, 40, 0]


def test_kept_blocks_are_free_and_are_used_when_nothing_else_is() -> None:
    lives = engine(*STATE, interval=8, num_blocks=41)
    for number in range(1, 4):
        lives.run(session(number, 33))
    cache = lives.cache
    assert len(cache.debug.free_queue()) < cache.pool.num_free == 40
    request = cache.add(session(9, UNIT * 39))
    compute(cache, request, [UNIT * 39])
    assert cache.pool.num_free == 0
    assert cache.debug.checkpoints() == []
    cache.debug.check_integrity()


RATE_OF_FIRST_TURN = 8 * 0.5 / (8 + 1)
"""Of the first end of a request that went on where another had ended: the guess is 1/2."""


def test_who_replays_tokens_goes_on_at_the_boundary_behind_them() -> None:
    """The last 3 tokens of a hit are computed again, for the window: it is one more turn."""
    groups, replay = (full(UNIT), window(3, UNIT)), {"replay_tokens": 3}
    cache = CacheManager(
        config(
            *groups, num_blocks=60, topology=replay, retention=ByValue(policy=EvictionPolicy.VALUE)
        )
    )
    for num_tokens, hit in ((16, 0), (24, 13)):
        request = cache.add(session(1, num_tokens))
        compute(cache, request, [num_tokens], hit=hit)
        cache.take_work()
        cache.release([request])
    (end,) = cache.debug.checkpoints()
    assert end.num_tokens == 24
    assert end.value == pytest.approx(RATE_OF_FIRST_TURN * UNIT)


def test_a_kept_block_that_is_forgotten_takes_what_it_leads_to_along() -> None:
    lives = engine(*STATE, interval=8)
    tokens = session(1, 33)
    lives.run(tokens)
    request = lives.cache.add(tokens)
    by_place = lives.cache.hit_blocks(request, 32)
    lives.cache.pool.forget([by_place[0][5]])
    lives.cache.debug.check_integrity()
    assert [point.num_tokens for point in lives.cache.debug.checkpoints()] == [8, 16]
    assert lives.resume(tokens) == 16
    lives.cache.pool.forget([by_place[0][0]])
    lives.cache.debug.check_integrity()
    assert lives.cache.debug.checkpoints() == []
    assert lives.resume(tokens) == 0


def test_a_request_that_hands_its_blocks_over_leaves_a_checkpoint() -> None:
    cache = CacheManager(
        config(*STATE, num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    request = cache.add(session(1, 21))
    compute(cache, request, [20, 21])
    blocks = cache.pop_blocks(request)
    assert [point.num_tokens for point in cache.debug.checkpoints()] == [20]
    cache.pool.free([block for block in reversed(blocks) if block])
    cache.debug.check_integrity()
    assert cache.pool.num_free == 59
    assert cache.match(cache.add(session(1, 21))).num_tokens == 20


def test_who_ends_without_a_checkpoint_says_nothing_of_another_path() -> None:
    """The second request leaves the path of the first at 8 tokens, and leaves no state."""
    cache = CacheManager(
        config(*STATE, num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    leave(cache, session(1, 25), UNIT)
    (before,) = cache.debug.checkpoints()
    leave(cache, [*session(1, 8), *session(2, 22)], 30)
    assert cache.debug.checkpoints() == [before]


# ---- refusals -------------------------------------------------------------------------------


def test_an_interval_between_boundaries_is_refused() -> None:
    wrong = config(full(UNIT), mamba(8), retention=ByValue(interval=12))
    with pytest.raises(InvalidValueError, match=r"every 12 tokens.*multiple of the alignment 8"):
        CacheManager(wrong)


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match=r"interval is -8; expected an integer of at least 0"
    ):
        ByValue(interval=-8)


@pytest.mark.parametrize(
    ("per_token", "per_pair"), [(-1.0, 0.5), (1.0, -0.5), (0.0, 0.0)], ids=str
)
def test_a_cost_that_is_none_is_refused(per_token: float, per_pair: float) -> None:
    said = rf"{per_token} a token and {per_pair} a pair"
    with pytest.raises(InvalidValueError, match=said):
        PrefillCost(per_token, per_pair)


@pytest.mark.parametrize("endless", [float("inf"), float("nan")])
def test_an_endless_cost_is_refused(endless: float) -> None:
    with pytest.raises(InvalidValueError, match="prefill cost"):
        CacheManager(config(*STATE, retention=ByValue(cost=PrefillCost(1.0, endless))))


def test_checkpoints_are_in_the_memory_account() -> None:
    """The same requests, with and without checkpoints: what they differ by is the checkpoints'."""
    by_value, dense = (
        CacheManager(config(*STATE, num_blocks=4000, retention=retention))
        for retention in (ByValue(interval=UNIT), Dense())
    )
    for cache in (by_value, dense):
        for number in range(200):
            leave(cache, session(number, 21), UNIT)
    points = len(by_value.debug.checkpoints())
    assert points >= 200
    assert by_value.debug.memory_bytes() - dense.debug.memory_bytes() >= 100 * points
