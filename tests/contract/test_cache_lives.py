"""What whole lives of requests leave in a cache, for the manager and for its model.

A scheduler runs one request at a time, each to its end, unless a test says otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from kvbraid.cache import CacheManager, Interval, Need
from kvbraid.errors import TooLargeError
from kvbraid.events.model import BlockStored
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys

from tests.contract.whole_lives import Engine
from tests.reference.cache_model import CacheModel
from tests.unit.cache.caches import chunked, config, full, mamba, window

SALTS: Final = (ExtraKeys(cache_salt="a"), ExtraKeys(cache_salt="b"), NO_EXTRA_KEYS)


Make = Callable[..., Engine]


@pytest.fixture(params=[CacheManager, CacheModel], ids=["manager", "model"])
def make(request: pytest.FixtureRequest) -> Make:
    def made(*groups: Any, max_step_tokens: int = 1024, **fields: Any) -> Engine:  # noqa: ANN401
        settings = config(*groups, **{"num_blocks": 1000, **fields})
        return Engine(request.param(settings), settings, max_step_tokens)

    return made


def used(table: Sequence[int]) -> int:
    return sum(1 for block in table if block)


def test_one_token_of_an_aligned_prompt_is_left_to_compute(make: Make) -> None:
    engine = make(full())
    engine.run(range(48))
    assert engine.hit(range(48)) == 32
    assert engine.hit(range(49)) == 48


def test_a_chunk_that_begins_inside_a_block_needs_that_block(make: Make) -> None:
    """Tokens 60 to 63 are of the chunk that 64 is in: block 3. At 80 a chunk begins."""
    prompt = range(100)
    for chunk_blocks, hit in (((), 0), ((3,), 64)):
        engine = make(full(), chunked(20))
        engine.run(prompt[:79])
        held: dict[tuple[int, bytes], list[int]] = engine.cache.debug.cached()
        chunk = sorted(blocks for (group, _), blocks in held.items() if group == 1)
        engine.cache.pool.forget([b for j, (b,) in enumerate(chunk) if j not in chunk_blocks])
        assert engine.hit(prompt) == hit
    engine = make(full(), chunked(20))
    engine.run(prompt)
    engine.cache.pool.forget([b for (g, _), (b,) in engine.cache.debug.cached().items() if g == 1])
    assert engine.hit(prompt) == 80


def test_groups_with_unequal_blocks_resume_at_common_multiples(make: Make) -> None:
    engine = make(full(16), window(64, block_size=48))
    engine.run(range(160))
    assert [(e.group_idx, e.block_size, len(e.block_hashes)) for e in engine.stores()] == [
        (0, 16, 9),
        (1, 48, 3),
    ]
    full_store, window_store = engine.stores()
    assert window_store.block_hashes == full_store.block_hashes[2::3]
    assert engine.hit(range(160)) == 144
    assert engine.hit(range(140)) == 96


def test_a_window_gives_back_what_it_has_left_while_the_request_runs(make: Make) -> None:
    cache = make(window(32)).cache
    request, counts = cache.add(range(200)), []
    for end in (64, 128, 192, 200):
        assert cache.allocate([Need(request=request, num_new_tokens=min(64, end % 64 or 64))])
        counts.append(used(cache.blocks(request)[0]))
    for token in range(4):
        cache.decode([request], [token])
        counts.append(used(cache.blocks(request)[0]))
    assert counts == [4, 6, 6, 3, 3, 3, 3, 3]  # A step's own blocks, and two of the window.
    cache.release([request])
    assert cache.pool.num_free == 999


def test_a_state_group_uses_two_blocks_however_long_the_prompt_is(make: Make) -> None:
    cache = make(full(), mamba()).cache
    request = cache.add(range(1000))
    for _ in range(0, 960, 64):
        cache.start_step()
        cache.allocate([Need(request=request, num_new_tokens=64)])
        assert used(cache.blocks(request)[1]) <= 2
    cache.allocate([Need(request=request, num_new_tokens=40)])
    for token in range(50):
        cache.start_step()
        cache.decode([request], [token])
        assert used(cache.blocks(request)[1]) <= 2
    cache.release([request])
    cache.debug.check_integrity()


def test_states_exist_only_where_a_step_ended(make: Make) -> None:
    engine = make(full(), mamba(), max_step_tokens=48)
    engine.run(range(100))
    assert engine.hit(range(100)) == 96
    assert engine.hit(range(64)) == 48  # Steps ended at 48 and 96.
    assert engine.hit(range(48)) == 0


def test_a_junction_is_kept_once_a_second_prompt_has_shown_it(make: Make) -> None:
    engine = make(full(), window(32), mamba(), retention=Interval(0))
    shared = list(range(64))
    hits = [engine.run([*shared, *range(first, first + 50)]) for first in (100, 200, 300)]
    assert hits == [0, 0, 64]


def test_a_retention_interval_keeps_the_window_of_each_of_its_multiples(make: Make) -> None:
    engine = make(full(), window(32), retention=Interval(64))
    engine.run(range(200))
    full_store, window_store = engine.stores()
    digests = full_store.block_hashes
    assert window_store.block_hashes == tuple(digests[j] for j in (2, 3, 6, 7, 10, 11))
    assert [engine.hit(range(n)) for n in (65, 129, 193)] == [64, 128, 192]


def test_later_stores_name_the_block_before_them_as_parent(make: Make) -> None:
    engine = make(full(), max_step_tokens=32)
    engine.run(range(70), range(11))
    first, second, third = engine.stores()
    assert second.parent_block_hash == first.block_hashes[-1]
    assert third.parent_block_hash == second.block_hashes[-1]
    assert list(third.token_ids) == [64, 65, 66, 67, 68, 69, *range(10)]


def test_the_last_generated_token_is_never_computed(make: Make) -> None:
    engine = make(full())
    engine.run(range(20), range(12))
    assert engine.hit([*range(20), *range(12), 99]) == 16
    engine.run(range(20), range(13))
    assert engine.hit([*range(20), *range(12), 99]) == 32


def test_two_requests_at_once_leave_two_copies_and_two_removals(make: Make) -> None:
    engine = make(full(), num_blocks=7)
    cache = engine.cache
    twins = [cache.add(range(40)) for _ in range(2)]
    assert cache.allocate([Need(request=r, num_new_tokens=40) for r in twins]).num_fit == 2
    cache.release(twins)
    engine.publish(cache.take_events())
    first, second = engine.stores()
    assert first.block_hashes == second.block_hashes
    engine.run(range(1000, 1096))
    assert sorted(engine.removed()) == sorted([*first.block_hashes] * 2)


def test_the_longest_unused_is_evicted_first_and_of_one_request_its_tail(make: Make) -> None:
    engine = make(full(), num_blocks=7)
    engine.run(range(49))  # Three blocks, and a tail of one.
    old = engine.stores()[0].block_hashes
    engine.run(range(100, 117))  # One block, and the unhashed tail again.
    assert engine.run(range(33)) == 32  # Uses the first two again.
    engine.run(range(200, 248))
    assert engine.removed()[0] == old[2]
    assert engine.hit(range(49)) == 32


def test_what_a_running_request_uses_is_never_evicted(make: Make) -> None:
    engine = make(full(), num_blocks=7)
    engine.run(range(65))
    cache = engine.cache
    request = cache.add(range(65))
    need = Need(request=request, num_new_tokens=1, num_hit_tokens=cache.match(request).num_tokens)
    assert cache.allocate([need]).num_fit == 1
    with pytest.raises(TooLargeError, match="does not fit into the free blocks"):
        engine.run(range(100, 148))
    cache.release([request])
    assert engine.hit(range(65)) == 64


def test_a_request_that_does_not_fit_leaves_its_events_and_no_reference(make: Make) -> None:
    engine = make(full(), num_blocks=4, max_step_tokens=32)
    with pytest.raises(TooLargeError, match="enlarge the pool"):
        engine.run(range(100))
    assert [type(event) for step in engine.said for event in step] == [BlockStored]
    assert engine.cache.pool.num_free == 3
    assert engine.hit(range(100)) == 32


def test_a_salt_separates_caches_and_shows_on_the_first_block_only(make: Make) -> None:
    engine = make(full())
    engine.run(range(40), (), SALTS[0])
    (store,) = engine.stores()
    assert [key and list(key) for key in store.extra_keys or ()] == [["a"], None]
    assert [engine.hit(range(40), salt) for salt in SALTS] == [32, 0, 0]


def test_matching_changes_nothing(make: Make) -> None:
    engine = make(full(), num_blocks=4)
    engine.run(range(40))
    order = engine.cache.debug.free_queue()
    engine.hit(range(40))
    assert engine.cache.debug.free_queue() == order
    assert len(engine.cache.take_events()) == 0
