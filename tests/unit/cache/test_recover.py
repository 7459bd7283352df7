"""A recovery in one step, on caches that one can draw: what it does, and what it refuses whole."""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Need, Recovery
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.ids import BlockId

from tests.unit.cache.caches import compute, config, full, mamba, picture, window

TOKENS = list(range(24))
OTHERS = list(range(50, 74))
ZEROED = GroupOptions(needs_zeroing=True)


def cache_of(*groups: Any) -> CacheManager:  # noqa: ANN401 - specs
    return CacheManager(config(*groups, group_options=(ZEROED,) * len(groups)))


def load(cache: CacheManager, tokens: list[int]) -> int:
    """A request whose first 16 tokens are being loaded."""
    request = cache.add(tokens)
    groups = tuple(range(cache.num_groups))
    need = Need(
        request=request,
        num_new_tokens=0,
        num_external_tokens=16,
        delay_commit=True,
        loading_groups=groups,
    )
    assert cache.allocate([need]).num_fit == 1
    return request


def block(cache: CacheManager, request: int, position: int, group: int = 0) -> BlockId:
    return cache.blocks(request)[group][position]


def test_an_owner_zeroes_what_its_preempted_sharer_had() -> None:
    cache = cache_of(full(4))
    owner, reader = cache.add(TOKENS[:8]), cache.add([*TOKENS[:8], *OTHERS])
    compute(cache, owner, [8])
    compute(cache, reader, [12], hit=8)
    cache.take_work()
    bad, parts = block(cache, owner, 1), {"rewind": {owner: 4}, "zero": {owner: 4}}
    for sharing in ({"forget": [bad]}, {"preempt": [reader]}):
        with pytest.raises(InvalidValueError, match=f"would wipe block {bad}"):
            cache.recover(Recovery(**parts, **sharing))  # type: ignore[arg-type]
    cache.recover(Recovery(forget=[bad], preempt=[reader], **parts))  # type: ignore[arg-type]
    assert cache.take_work().blocks_to_zero == [bad]
    cache.debug.check_integrity()


# ---- refused whole -------------------------------------------------------------------------

SECOND, THIRD = BlockId(2), BlockId(3)
REFUSED: dict[str, tuple[Recovery, str]] = {
    "rewound and preempted": (
        Recovery(rewind={0: 8}, preempt=[0]),
        "request 0: rewind and preempt in one recovery.* do only one of the two",
    ),
    "zeroed and preempted": (
        Recovery(zero={0: 8}, preempt=[0]),
        "request 0: zero and preempt in one recovery",
    ),
    "preempted twice": (Recovery(preempt=[1, 1]), "request 1 is given twice"),
    "committed and forgotten": (
        Recovery(forget=[SECOND], commit={0: 8}),
        "commit of 8 tokens would make block 2 findable, which is forgotten; commit fewer",
    ),
    "committed in part and forgotten": (Recovery(forget=[SECOND], commit={0: 5}), "block 2"),
    "committed further than rewound": (
        Recovery(commit={0: 12}, rewind={0: 8}),
        "commit of 12 tokens, but it is rewound to 8; commit at most that many",
    ),
    "committed further than computed": (Recovery(commit={0: 17}), "17 tokens, 16 are computed"),
    "rewound onto a held block": (
        Recovery(rewind={0: 8}, hold=[THIRD]),
        "rewind to 8 tokens would write into block 3 of group 0, which is held; preempt",
    ),
    "rewound into a held block": (Recovery(rewind={0: 11}, hold=[THIRD]), "block 3"),
    "held although nobody has it": (
        Recovery(hold=[BlockId(40)]),
        "block 40 is to be held, but no request has it; hold a block before its request ends",
    ),
    "held although only the caller has it": (Recovery(hold=[BlockId(5)]), "block 5"),
    "zeroed and held": (Recovery(hold=[THIRD], zero={0: 8}), "would wipe block 3"),
    "zeroed and committed": (Recovery(commit={0: 12}, zero={0: 8}), "would wipe block 3"),
    "zeroed from inside a block": (Recovery(zero={0: 9}), "start at a multiple of 4"),
}


@pytest.mark.parametrize(("recovery", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_parts_that_contradict_each_other_are_refused_together(
    recovery: Recovery, says: str
) -> None:
    """The first request loads blocks 1 to 4, the caller has block 5, a second request runs."""
    cache = cache_of(full(4))
    first = load(cache, TOKENS)
    (taken,) = cache.pool.take(1)
    second = cache.add(OTHERS)
    compute(cache, second, [24])
    assert (first, second, taken) == (0, 1, 5)
    before = cache.copy()
    requests = [first, second]
    # Something that is possible stands in front of what is refused.
    good = [*recovery.forget, block(cache, second, 0)]
    recovery = replace(recovery, forget=good, commit={second: 24, **recovery.commit})
    with pytest.raises(InvalidValueError, match=says):
        cache.recover(recovery)
    assert picture(cache, requests) == picture(before, requests)
    assert cache.take_events().structs() == before.take_events().structs()
    assert cache.take_statistics() == before.take_statistics()
    assert cache.take_work() == before.take_work()
    cache.debug.check_integrity([taken])


def test_a_window_that_is_gone_refuses_the_whole_recovery() -> None:
    cache = cache_of(full(4), window(5, 4))
    request = cache.add(TOKENS)
    compute(cache, request, [12, 24])
    before = picture(cache, [request])
    with pytest.raises(NotHeldError, match="preempt the request, then match again"):
        cache.recover(Recovery(forget=[block(cache, request, 5)], rewind={request: 4}))
    assert picture(cache, [request]) == before


@pytest.mark.parametrize(
    "parts",
    [
        {"forget": [-1]},
        {"hold": [1 << 32]},
        {"commit": {0: -1}},
        {"rewind": {0: -1}},
        {"zero": {0: 1 << 32}},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_refused_when_the_recovery_is_made(parts: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidValueError, match="expected an integer from 0 to 4294967295"):
        Recovery(**parts)


def test_a_commit_would_make_the_last_state_findable_again() -> None:
    """The prompt resumes after 8 tokens, and each commit that ends there registers this state."""
    cache = cache_of(full(4), mamba(4))
    request = cache.add(TOKENS[:9])
    compute(cache, request, [8])
    state = block(cache, request, 1, group=1)
    with pytest.raises(InvalidValueError, match=f"would make block {state} findable"):
        cache.recover(Recovery(forget=[state], commit={request: 8}))
    assert cache.pool.describe([state])[0].num_tokens == 8
    cache.recover(Recovery(forget=[state], commit={request: 4}))
    assert cache.pool.describe([state])[0].num_tokens == 0
