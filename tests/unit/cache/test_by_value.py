"""What retention by value promises, one worked example each.

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


def engine(
    *groups: GroupSpec, interval: int = 0, num_blocks: int = 200, cost: PrefillCost | None = None
) -> Engine:
    retention = ByValue(policy=EvictionPolicy.VALUE, interval=interval, cost=cost or PrefillCost())
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


def test_without_windows_of_the_branch_the_second_falls_back_to_the_interval() -> None:
    """The window blocks that only the branch needs are evicted; the checkpoint before it stays."""
    lives = engine(full(UNIT), window(5, UNIT), interval=16, num_blocks=40)
    lives.run([*range(22), *session(1, 9)])
    lives.press(UNIT * (len(lives.cache.debug.free_queue()) // 2))
    assert lives.run([*range(22), *session(2, 9)]) == 16


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


def test_a_checkpoint_that_nobody_uses_sinks_however_much_it_is_worth() -> None:
    """One is worth twice as much per block as the others: under pressure it goes, but later."""
    lives = engine(full(UNIT), num_blocks=30, cost=PrefillCost(per_token=0.0, per_pair=1.0))
    ends = {"dear": (session(1, 33), 32), "cheap": (session(2, 17), 16)}
    for tokens, _ in ends.values():
        lives.run(tokens)
    lasted: dict[str, int] = {}
    for turn in range(100):
        gone = (name for name, (tokens, end) in ends.items() if lives.resume(tokens) < end)
        for name in gone:
            lasted.setdefault(name, turn)
        lives.press(17)
    assert 0 < lasted["cheap"] < lasted["dear"]


def test_windows_behind_a_boundary_go_before_any_checkpoint() -> None:
    """A window of one block: the checkpoint at the end needs one of ten; nine wait in front."""
    lives = engine(full(UNIT), window(5, UNIT), num_blocks=60)
    tokens = session(1, 41)
    lives.run(tokens)
    (point,) = lives.cache.debug.checkpoints()
    assert point.num_tokens == 40
    waiting = lives.cache.debug.free_queue()
    windows = {b for (group, _), row in lives.cache.debug.cached().items() if group for b in row}
    assert len(windows & set(waiting)) == 9
    assert lives.resume(tokens[:24]) == 24
    fill(lives.cache, len(waiting))
    assert lives.cache.debug.free_queue() == []
    assert point in lives.cache.debug.checkpoints()
    assert (lives.resume(tokens[:24]), lives.resume(tokens)) == (0, 40)


def fill(cache: CacheManager, num_blocks: int) -> None:
    """Have a request that does not end take so many blocks of a full group and another one."""
    request = cache.add(session(99, UNIT * (num_blocks // 2)))
    compute(cache, request, [UNIT * (num_blocks // 2)])


def test_blocks_that_lead_to_no_checkpoint_go_before_those_that_serve_a_boundary() -> None:
    """The first request left states of every block. The second computed all in one step: without
    any state its blocks serve nothing, and go first though they were freed last."""
    cache = CacheManager(
        config(*STATE, num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    first, second = session(1, 21), session(2, 21)
    leave(cache, first, UNIT)
    serving = set(cache.debug.free_queue()) & {
        b for row in cache.debug.cached().values() for b in row
    }
    before = set(cache.debug.cached())
    leave(cache, second, 21)
    worthless = {b for key, row in cache.debug.cached().items() if key not in before for b in row}
    assert serving
    assert len(worthless) == 5
    queue = cache.debug.free_queue()
    assert max(map(queue.index, worthless)) < min(map(queue.index, serving))


def test_an_inner_checkpoint_goes_without_the_end_of_its_session() -> None:
    lives = engine(*STATE, interval=8, num_blocks=60)
    tokens = session(1, 33)
    lives.run(tokens)
    points = lives.cache.debug.checkpoints()
    assert {point.num_tokens: point.is_last for point in points} == {
        8: False,
        16: False,
        24: False,
        32: True,
    }
    assert points[-1].is_last
    assert lives.resume(tokens[:18]) == 16
    waiting = len(lives.cache.debug.free_queue())
    request = lives.cache.add(session(2, UNIT * (waiting + 1)))
    compute(lives.cache, request, [UNIT * (waiting + 1)])  # And a block for its state.
    assert lives.resume(tokens) == 32
    assert sum(lives.resume(tokens[: end + 1]) == end for end in (8, 16, 24)) == 1


# ---- what a checkpoint is worth -------------------------------------------------------------


def values(lives: Engine) -> dict[int, float]:
    return {point.num_tokens: point.value for point in lives.cache.debug.checkpoints()}


def rate_of_ends(number: int) -> float:
    """How likely somebody goes on from the end of the request that was the nth to end, while
    nobody did: a guess of 1/4, which counts for 8. Each end makes earlier ones count less."""
    return 8 * 0.25 / (8 + sum((1 - 1 / 256) ** age for age in range(number)))


RATE_OF_FIRST_TURN = 8 * 0.5 / (8 + 1)
"""Of the first end of a request that went on where another had ended: the guess is 1/2."""


def test_per_token_all_depths_are_worth_the_same_per_block() -> None:
    lives = engine(full(UNIT))
    for num_tokens in (17, 65):
        lives.run(session(num_tokens, num_tokens))
    worth = values(lives)
    assert worth[16] == pytest.approx(rate_of_ends(1) * UNIT)
    assert worth[64] == pytest.approx(rate_of_ends(2) * UNIT)


def test_per_pair_what_is_four_times_as_deep_is_worth_four_times_as_much_per_block() -> None:
    lives = engine(full(UNIT), cost=PrefillCost(per_token=0.0, per_pair=2.0))
    for num_tokens in (65, 17):
        lives.run(session(num_tokens, num_tokens))
    worth = values(lives)
    assert list(worth) == [16, 64], "least value first"
    assert worth[64] / rate_of_ends(1) == pytest.approx(64 * 64 / 16)
    assert worth[16] / rate_of_ends(2) == pytest.approx(16 * 16 / 4)


def test_a_turn_is_worth_what_it_adds_to_the_one_before() -> None:
    """The end of a first turn of 32 tokens, and of a second one 8 tokens on: without it a request
    resumes at 32, for 8 tokens in 2 blocks and a state."""
    lives = engine(*STATE)
    first = session(1, 33)
    lives.run(first)
    alone = values(lives)[32]
    lives.run([*first[:32], *session(2, 9)])
    worth = values(lives)
    assert alone == pytest.approx(rate_of_ends(1) * 32 / (8 + 1))
    assert worth[40] == pytest.approx(RATE_OF_FIRST_TURN * 8 / (2 + 1))
    assert lives.resume(first) == 32


def test_what_two_paths_share_is_lost_with_neither() -> None:
    """Two requests at once that share 8 of 17 tokens: without one of them, 8 can be resumed."""
    cost = PrefillCost(per_token=0.0, per_pair=2.0)
    cache = CacheManager(
        config(
            full(UNIT), num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE, cost=cost)
        )
    )
    requests = [cache.add([*range(8), *session(number, 9)]) for number in (1, 2)]
    for request in requests:
        compute(cache, request, [17])
    cache.take_work()
    cache.release(requests)
    lost = 16 * 16 - 8 * 8
    worth = [point.value for point in cache.debug.checkpoints()]
    assert worth == pytest.approx([rate_of_ends(2) * lost / 2, rate_of_ends(1) * lost / 2])


# ---- requests that stop, and blocks that go otherwise ---------------------------------------


@pytest.mark.parametrize("groups", [STATE, WINDOW], ids=["states", "windows"])
def test_a_preempted_request_resumes_where_it_was(groups: Sequence[GroupSpec]) -> None:
    """Even after all blocks that wait in the queue were used by another one."""
    cache = CacheManager(
        config(*groups, num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    request = cache.add(session(1, 30))
    compute(cache, request, [8, 20])
    cache.take_work()
    cache.preempt([request])
    other = cache.add(session(2, 480))
    waiting = len(cache.debug.free_queue())
    per_block = len(groups) if groups is WINDOW else 1
    compute(cache, other, [UNIT * (waiting // per_block) - UNIT])
    cache.debug.check_integrity()
    assert cache.match(request).num_tokens == 20


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


def test_a_state_that_is_forgotten_is_no_checkpoint_but_those_behind_it_are() -> None:
    lives = engine(*STATE, interval=8)
    tokens = session(1, 33)
    lives.run(tokens)
    (state,) = lives.cache.hit_blocks(lives.cache.add(tokens[:17]), 16)[1][-1:]
    lives.cache.pool.forget([state])
    lives.cache.debug.check_integrity()
    assert sorted(point.num_tokens for point in lives.cache.debug.checkpoints()) == [8, 24, 32]
    assert (lives.resume(tokens[:23]), lives.resume(tokens)) == (8, 32)


def test_a_reset_lets_everything_go() -> None:
    lives = engine(*WINDOW, interval=8, num_blocks=60)
    lives.run(session(1, 33))
    assert lives.cache.reset()
    lives.cache.debug.check_integrity()
    assert lives.cache.debug.checkpoints() == []
    assert lives.cache.debug.cached() == {}
    assert len(lives.cache.debug.free_queue()) == lives.cache.pool.num_free == 59
    assert lives.run(session(1, 33)) == 0
    assert lives.resume(session(1, 33)) == 32


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


# ---- paths that share blocks ------------------------------------------------------------------


def test_who_ends_without_a_checkpoint_says_nothing_of_another_path() -> None:
    """The second request leaves the path of the first at 8 tokens, and leaves no state."""
    cache = CacheManager(
        config(*STATE, num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    leave(cache, session(1, 25), UNIT)
    (before,) = cache.debug.checkpoints()
    leave(cache, [*session(1, 8), *session(2, 22)], 30)
    assert cache.debug.checkpoints() == [before]


def test_a_block_that_two_paths_need_stays_until_both_are_gone() -> None:
    """Blocks of 8 and 12 tokens, paths that part at 14: both need the block of 12."""
    cache = CacheManager(
        config(full(8), full(12), num_blocks=60, retention=ByValue(policy=EvictionPolicy.VALUE))
    )
    paths = [[*range(14), *session(number, 15)] for number in (1, 2)]
    for path in paths:
        leave(cache, path, 29)
        cache.debug.check_integrity()
    own = cache.hit_blocks(cache.add(paths[0]), 24)[0][1]
    cache.pool.forget([own])
    cache.debug.check_integrity()
    assert [cache.match(cache.add(path)).num_tokens for path in paths] == [0, 24]
    leave(cache, paths[0], 29)
    cache.debug.check_integrity()
    assert [cache.match(cache.add(path)).num_tokens for path in paths] == [24, 24]


def test_a_checkpoint_inside_a_block_leaves_the_whole_block_to_longer_prefixes() -> None:
    """A prompt of 12 tokens can be resumed at 10, inside its third block of 4, which is whole."""
    topology = {"partial_hits": True, "hash_block_size": 2}
    groups = (full(4), mamba(8))
    cache = CacheManager(
        config(
            *groups,
            num_blocks=60,
            topology=topology,
            retention=ByValue(policy=EvictionPolicy.VALUE),
        )
    )

    def live(tokens: Sequence[int], ends: Sequence[int]) -> int:
        request = cache.add(tokens)
        hit = cache.match(request).num_tokens
        compute(cache, request, [end for end in ends if end > hit], hit=hit)
        cache.take_work()
        cache.release([request])
        cache.debug.check_integrity()
        return hit

    assert live(range(12), [8, 10, 12]) == 0
    assert live(range(12), [12]) == 10
    assert live([*range(12), *session(1, 9)], [16, 20, 21]) == 10
    assert live([*range(12), *session(2, 9)], [16, 20, 21]) == 10
    assert live([*range(12), *session(1, 9)], [21]) == 20


# ---- refusals -------------------------------------------------------------------------------


def test_an_interval_between_boundaries_is_refused() -> None:
    wrong = config(full(UNIT), mamba(8), retention=ByValue(interval=12))
    with pytest.raises(InvalidValueError, match=r"every 12 tokens.*multiple of the alignment 8"):
        CacheManager(wrong)


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"-8 tokens; expected 0 or more"):
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
