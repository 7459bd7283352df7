"""The reference cache: tokens in, hit and events out, for each rule of the resume rule."""

import math
from collections.abc import Sequence

import pytest
from kvbraid.errors import InvalidValueError, TooLargeError, TopologyError
from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference.cache import ReferenceCache, Run, wire_hash
from tests.reference.chains import chain, chunked, full, mamba, window


def cache_of(
    *groups: GroupSpec,
    num_blocks: int = 1000,
    retention: int | None = None,
    max_step_tokens: int = 1024,
) -> ReferenceCache:
    hash_block_size = math.gcd(*(group.block_size for group in groups))
    return ReferenceCache(
        Topology(groups=groups),
        num_blocks,
        chain=chain(hash_block_size),
        retention=retention,
        max_step_tokens=max_step_tokens,
    )


def stores(run: Run) -> list[BlockStored]:
    return [event for batch in run.batches for event in batch if isinstance(event, BlockStored)]


def removals(run: Run) -> list[BlockRemoved]:
    return [event for batch in run.batches for event in batch if isinstance(event, BlockRemoved)]


def hold(cache: ReferenceCache, prompt: Sequence[int], held: Sequence[str]) -> None:
    """Put the named blocks ("0 2") of each group into the pool, unreferenced."""
    hashes = chain(cache.hash_block_size)(prompt, None)
    for g, blocks in enumerate(held):
        for j in map(int, blocks.split()):
            block, _ = cache.pool.allocate()
            end = (j + 1) * cache.groups[g].block_size
            cache.pool.register(block, (g, hashes[end // cache.hash_block_size - 1]))
            cache.pool.release([block])
    cache.check_integrity()


W32, W17, W64 = window(32), window(17), window(64)


@pytest.mark.parametrize(
    ("groups", "held", "blocks"),
    [
        ((full(), W32), ("0 1 2", "0 1 2"), 3),
        ((full(), W32), ("0 1 2", ""), 0),
        ((full(), W32), ("0 1 2", "0 1"), 2),
        ((full(), W32), ("0 1 2", "1 2"), 3),
        ((full(), W32), ("0 1 2", "0"), 1),
        ((full(), W32), ("", "0 1 2"), 0),
        ((full(), W32), ("0 1", "0 1 2"), 2),
        ((full(), W64), ("0 1 2", "0 1 2"), 3),
        ((full(), W32, W32), ("0 1 2", "0 1", "1 2"), 0),
        ((full(), W32, W17), ("0 1 2", "1 2", "0"), 0),
        ((W32,), ("1 2",), 3),
        ((full(), mamba()), ("0 1 2", "1"), 2),
        ((full(), chunked(32)), ("0 1 2", "2"), 3),
        ((full(), chunked(32)), ("0 1 2", ""), 2),
        ((full(eagle=True), full()), ("0 1 2", "0 1 2"), 2),
    ],
)
def test_the_hit_is_that_of_the_worked_examples(
    groups: tuple[GroupSpec, ...], held: tuple[str, ...], blocks: int
) -> None:
    prompt = range(3 * 16 + 5)
    cache = cache_of(*groups)
    hold(cache, prompt, held)
    assert cache.match(prompt) == blocks * 16
    assert cache.run(prompt).hit == blocks * 16
    cache.check_integrity()


def test_one_token_of_an_aligned_prompt_is_left_to_compute() -> None:
    cache = cache_of(full())
    cache.run(range(48))
    assert cache.match(range(48)) == 32
    assert cache.match(range(49)) == 48


def test_a_window_of_one_token_and_a_chunk_boundary_need_no_block() -> None:
    cache = cache_of(full(), window(1))
    cache.run(range(40))
    assert cache.match(range(40)) == 32
    cache = cache_of(full(), chunked(20, block_size=16))
    hold(cache, range(100), ("0 1 2 3", ""))
    assert cache.match(range(100)) == 0  # Tokens 60 to 63 are of the chunk that 64 is in.
    hold(cache, range(100), ("", "3"))
    assert cache.match(range(100)) == 64
    hold(cache, range(100), ("4", ""))
    assert cache.match(range(100)) == 80


def test_groups_with_unequal_blocks_resume_at_common_multiples() -> None:
    cache = cache_of(full(16), window(64, block_size=48))
    run = cache.run(range(160))
    assert [(e.group_idx, e.block_size, len(e.block_hashes)) for e in stores(run)] == [
        (0, 16, 9),
        (1, 48, 3),
    ]
    full_store, window_store = stores(run)
    assert window_store.block_hashes == full_store.block_hashes[2::3]
    assert cache.match(range(160)) == 144
    assert cache.match(range(140)) == 96


def test_a_window_gives_back_what_it_has_left_while_the_request_runs() -> None:
    cache = cache_of(window(32), max_step_tokens=64)
    request = cache.begin(range(200), range(5))
    used = []
    while not request.is_done:
        cache.step(request)
        cache.check_integrity()
        used.append(sum(1 for block in request.tables[0] if block))
    assert used == [4, 6, 6, 3, 3, 3, 3, 3]  # A step's own blocks, and two of the window.
    cache.finish(request)
    assert len(cache.pool.free) == 999


def test_a_state_group_uses_two_blocks_however_long_the_prompt_is() -> None:
    cache = cache_of(full(), mamba(), max_step_tokens=64)
    request = cache.begin(range(1000), range(50))
    while not request.is_done:
        cache.step(request)
        assert sum(1 for block in request.tables[1] if block) <= 2
    cache.finish(request)
    cache.check_integrity()


def test_states_exist_only_where_a_step_ended() -> None:
    cache = cache_of(full(), mamba(), max_step_tokens=48)
    cache.run(range(100))
    assert cache.match(range(100)) == 96
    assert cache.match(range(64)) == 48  # Steps ended at 48 and 96.
    assert cache.match(range(48)) == 0


def test_a_store_spans_all_tokens_but_lists_only_what_retention_keeps() -> None:
    cache = cache_of(full(), window(32), retention=0)
    full_store, window_store = stores(cache.run(range(100)))
    assert len(full_store.block_hashes) == 6
    assert window_store.block_hashes == full_store.block_hashes[4:6]
    assert list(window_store.token_ids) == list(range(96))
    assert window_store.parent_block_hash is None
    assert window_store.kv_cache_spec_kind == "sliding_window"
    assert window_store.kv_cache_spec_sliding_window == 32
    assert cache.match(range(100)) == 96


def test_a_junction_is_kept_once_a_second_prompt_has_shown_it() -> None:
    cache = cache_of(full(), window(32), mamba(), retention=0)
    shared = list(range(64))
    hits = [cache.run([*shared, *range(first, first + 50)]).hit for first in (100, 200, 300)]
    assert hits == [0, 0, 64]


def test_a_retention_interval_keeps_every_multiple_of_it() -> None:
    cache = cache_of(full(), window(32), retention=64)
    (_, window_store) = stores(cache.run(range(200)))
    hashes = [wire_hash(digest) for digest in chain(16)(range(200), None)]
    assert window_store.block_hashes == tuple(hashes[j] for j in (2, 3, 6, 7, 10, 11))
    assert [cache.match(range(n)) for n in (65, 129, 193)] == [64, 128, 192]


def test_later_stores_name_the_block_before_them_as_parent() -> None:
    cache = cache_of(full(), max_step_tokens=32)
    first, second, third = stores(cache.run(range(70), range(11)))
    assert second.parent_block_hash == first.block_hashes[-1]
    assert third.parent_block_hash == second.block_hashes[-1]
    assert list(third.token_ids) == [64, 65, 66, 67, 68, 69, *range(10)]


def test_the_last_generated_token_is_never_computed() -> None:
    cache = cache_of(full())
    cache.run(range(20), range(12))
    assert cache.match([*range(20), *range(12), 99]) == 16
    cache.run(range(20), range(13))
    assert cache.match([*range(20), *range(12), 99]) == 32


def test_two_requests_at_once_leave_two_copies_and_two_removals() -> None:
    cache = cache_of(full(), num_blocks=7)
    twins = [cache.begin(range(40)) for _ in range(2)]
    for request in twins:
        cache.step(request)
    for request in twins:
        cache.finish(request)
    first, second = (e for e in cache.take_events() if isinstance(e, BlockStored))
    assert first.block_hashes == second.block_hashes
    run = cache.run(range(1000, 1096))
    gone = [event.block_hashes for event in removals(run)]
    assert sorted(gone) == sorted([(h,) for h in first.block_hashes] * 2)
    cache.check_integrity()


def test_the_longest_unused_is_evicted_first_and_of_one_request_its_tail() -> None:
    cache = cache_of(full(), num_blocks=7)
    old = stores(cache.run(range(49)))[0].block_hashes  # Three blocks, and a tail of one.
    cache.run(range(100, 117))  # One block, and the unhashed tail again.
    assert cache.run(range(33)).hit == 32  # Uses the first two again.
    run = cache.run(range(200, 248))
    assert removals(run)[0].block_hashes == (old[2],)
    assert cache.match(range(49)) == 32


def test_what_a_running_request_uses_is_never_evicted() -> None:
    cache = cache_of(full(), num_blocks=7)
    cache.run(range(65))
    request = cache.begin(range(65))
    assert request.hit == 64
    with pytest.raises(TooLargeError, match="needs 3 more blocks, 2 of 7 are free"):
        cache.run(range(100, 148))
    cache.check_integrity()
    cache.step(request)
    cache.finish(request)
    assert cache.match(range(65)) == 64


def test_a_request_that_does_not_fit_leaves_its_events_and_no_reference() -> None:
    cache = cache_of(full(), num_blocks=4, max_step_tokens=32)
    with pytest.raises(TooLargeError, match="enlarge the pool"):
        cache.run(range(100))
    assert [type(event) for event in cache.take_events()] == [BlockStored]
    assert len(cache.pool.free) == 3
    assert cache.match(range(100)) == 32


def test_a_reset_waits_for_running_requests_and_is_announced() -> None:
    cache = cache_of(full())
    request = cache.begin(range(40))
    cache.step(request)
    assert not cache.reset()
    cache.finish(request)
    cache.take_events()
    assert cache.reset()
    assert cache.match(range(40)) == 0
    run = cache.run(range(40))
    assert isinstance(run.batches[0][0], AllBlocksCleared)
    cache.check_integrity()


def test_a_salt_separates_caches_and_shows_on_the_first_block_only() -> None:
    cache = cache_of(full())
    (store,) = stores(cache.run(range(40), salt="a"))
    assert [key and list(key) for key in store.extra_keys or ()] == [["a"], None]
    assert cache.match(range(40), salt="a") == 32
    assert cache.match(range(40), salt="b") == cache.match(range(40)) == 0


def test_matching_changes_nothing() -> None:
    cache = cache_of(full(), num_blocks=4)
    cache.run(range(40))
    order = list(cache.pool.free)
    cache.match(range(40))
    assert list(cache.pool.free) == order
    assert cache.take_events() == ()


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="0 tokens"):
        cache_of(full()).run([])


@pytest.mark.parametrize(
    "topology",
    [
        Topology(groups=(full(), mamba()), partial_hits=True),
        Topology(groups=(full(),), replay_tokens=16),
        Topology(groups=(full(),), hash_lookahead=1),
        Topology(groups=(GroupSpec(kind=SpecKind.CROSS_ATTENTION, block_size=16),)),
        Topology(groups=(GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16),)),
        Topology(
            groups=(
                GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16, prefix_cacheable=False),
            )
        ),
    ],
)
def test_what_it_has_no_rule_for_is_refused(topology: Topology) -> None:
    with pytest.raises(TopologyError):
        ReferenceCache(topology, 10, chain=chain(16))
