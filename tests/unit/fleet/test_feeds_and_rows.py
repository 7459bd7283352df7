"""What a feed says about itself applies to every rank in its payloads; ranks are limited."""

from dataclasses import replace

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode_batch
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

POD = PodId("a")
FULL = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4),))
PROMPT = tuple(range(9))
STORE = BlockStored(
    block_hashes=(1, 2), parent_block_hash=None, token_ids=PROMPT[:8], block_size=4, group_idx=0
)


def an_index(dp_size: int = 1, options: IndexOptions | None = None) -> FleetIndex:
    index = FleetIndex(options)
    index.register(POD, model="m", dp_size=dp_size, topology=FULL)
    return index


def tell(index: FleetIndex, feed: int, rank: int | None, *events: BlockStored) -> None:
    index.apply(POD, encode_batch(events, dp_rank=rank), dp_rank=feed)
    index.check_integrity()


def rows(index: FleetIndex) -> list[tuple[int, str, int, int]]:
    answer = index.score(Request(model="m", token_ids=PROMPT)).rows
    return [(row.dp_rank, row.state.value, row.lower, row.upper) for row in answer]


def refused(index: FleetIndex, rank: int = 0) -> dict[str, int]:
    (counts,) = [dict(row.refused) for row in index.pods() if row.dp_rank == rank]
    return counts


def test_gaps_losses_and_restarts_of_a_feed_reach_a_rank_that_its_payloads_name() -> None:
    """External data parallelism: one engine of rank 3, registered as a pod of one rank."""
    index = an_index()
    tell(index, 0, 3, STORE)
    assert rows(index) == [(0, "exact", 0, 0), (3, "exact", 8, 8)]
    index.lose(POD)
    index.set_state(POD, PodState.DEGRADED, reason="lost 1 to 4")
    assert rows(index) == [(0, "degraded", 0, 8), (3, "degraded", 0, 8)]
    index.set_state(POD, PodState.STALE, reason="not connected")
    assert rows(index) == [(0, "stale", 0, 8), (3, "stale", 0, 8)]
    index.reset(POD)
    index.set_state(POD, PodState.EXACT)
    index.apply(POD, encode_batch([AllBlocksCleared()], dp_rank=3))
    assert [row[1] for row in rows(index)] == ["exact", "exact"]


def test_after_a_restart_nothing_is_left_of_a_rank_that_payloads_named() -> None:
    index = an_index()
    tell(index, 0, 3, STORE)
    index.set_state(POD, PodState.REBUILDING, reason="asked from 0")
    index.reset(POD)
    index.set_state(POD, PodState.EXACT)
    assert rows(index) == [(0, "exact", 0, 0), (3, "exact", 0, 0)]
    # Before it publishes again, too, the feed's state is that of the rank.
    index.set_state(POD, PodState.STALE, reason="not connected")
    assert [row[1] for row in rows(index)] == ["stale", "stale"]


def test_a_rank_that_shows_itself_late_has_the_state_of_its_feed() -> None:
    index = an_index()
    index.set_state(POD, PodState.REBUILDING, reason="asked from 0")
    tell(index, 0, 3, STORE)
    assert rows(index)[1][1] == "rebuilding"
    assert [row.reason for row in index.pods()] == ["asked from 0"] * 2


def test_the_state_of_one_feed_does_not_reach_the_ranks_of_another() -> None:
    index = an_index(dp_size=2)
    tell(index, 0, 5, STORE)
    tell(index, 1, None, STORE)
    index.set_state(POD, PodState.STALE, dp_rank=1)
    index.lose(POD, dp_rank=1)
    assert [(rank, state) for rank, state, _, _ in rows(index)] == [
        (0, "exact"),
        (1, "stale"),
        (5, "exact"),
    ]
    assert rows(index)[2][2:] == (8, 8)


ORDER = [PodState.EXACT, PodState.DEGRADED, PodState.REBUILDING, PodState.STALE]


@pytest.mark.parametrize("own", ORDER)
@pytest.mark.parametrize("other", ORDER)
def test_of_two_feeds_for_one_rank_the_worst_state_is_its_state(
    own: PodState, other: PodState
) -> None:
    index = an_index(dp_size=2)
    index.set_state(POD, own, dp_rank=1)
    index.set_state(POD, other, dp_rank=0)
    tell(index, 0, 1, STORE)
    assert rows(index)[1][1] == max(own, other, key=ORDER.index).value
    assert rows(index)[0][1] == other.value


def test_two_histories_told_as_that_of_one_rank_are_a_bound_until_both_began_anew() -> None:
    index = an_index(dp_size=2)
    tell(index, 0, 1, STORE)
    assert rows(index)[1] == (1, "exact", 8, 8)
    tell(index, 1, None, STORE)
    assert rows(index)[1] == (1, "degraded", 0, 8)
    assert refused(index, 1) == {"rank_of_two_feeds": 1}
    index.reset(POD, dp_rank=0)
    index.check_integrity()
    assert rows(index)[1] == (1, "degraded", 0, 8)
    index.reset(POD, dp_rank=1)
    index.check_integrity()
    # What the other tiers had when the first of them went stays possible for ever.
    assert rows(index)[1][:3] == (1, "exact", 0)
    tell(index, 1, None, STORE)
    assert rows(index)[1][1:3] == ("exact", 8)


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [4096, 2**32 - 1])
def test_a_rank_that_no_engine_has_is_refused_and_the_feed_s_counts(rank: int) -> None:
    index = an_index()
    tell(index, 0, rank, STORE)
    assert rows(index) == [(0, "exact", 8, 8)]
    assert refused(index) == {"bad_rank": 1}


def test_ranks_that_payloads_name_count_against_the_limit() -> None:
    index = an_index(dp_size=2, options=IndexOptions(max_ranks=4))
    for rank in range(2, 8):
        tell(index, 0, rank, STORE)
    assert [row[0] for row in rows(index)] == [0, 1, 2, 3]
    assert refused(index) == {"too_many_ranks": 4}
    # A rank that has its row goes on, and another pod is registered all the same.
    tell(index, 0, 3, STORE)
    assert refused(index) == {"too_many_ranks": 4}
    index.register(PodId("b"), model="m", dp_size=2, topology=FULL)


def test_an_engine_that_makes_ranks_up_leaves_room_for_those_of_others() -> None:
    index = an_index()
    for rank in range(4096):
        index.apply(POD, encode_batch([STORE], dp_rank=rank))
    assert len(rows(index)) == 1 + 256
    assert refused(index) == {"too_many_ranks": 4095 - 256}
    index.register(PodId("b"), model="m", topology=FULL)
    index.apply(PodId("b"), encode_batch([STORE], dp_rank=7))
    assert [row.dp_rank for row in index.pods() if row.pod == "b"] == [0, 7]


def test_more_ranks_than_an_engine_or_the_index_has_are_not_registered() -> None:
    index = an_index(options=IndexOptions(max_ranks=5000))
    with pytest.raises(InvalidValueError, match="dp_size 4097; a pod has at most 4096"):
        index.register(PodId("b"), model="m", dp_size=4097)
    index.register(PodId("b"), model="m", dp_size=4096)
    with pytest.raises(InvalidValueError, match="5001 ranks would be registered; at most 5000"):
        index.register(PodId("c"), model="m", dp_size=904)
    with pytest.raises(InvalidValueError, match="max_ranks is 0; expected an integer from 1 to"):
        IndexOptions(max_ranks=0)
    assert len(index.pods()) == 4097


def test_a_group_that_no_engine_has_is_refused_and_degrades_its_rank() -> None:
    """65535 stood for events without an index: two groups answered as one."""
    for group in (256, 65_535, 10**9):
        index = an_index()
        tell(index, 0, None, STORE, replace(STORE, group_idx=group))
        assert rows(index) == [(0, "degraded", 0, 8)]
        assert refused(index) == {"large_group": 1}


# --- texts -----------------------------------------------------------------------------------


def long_text(number: int) -> str:
    return f"{number:060000d}"


def test_texts_of_one_pod_take_no_memory_and_evict_nothing_of_another() -> None:
    """Owners of stores and of removals, and salts: each named once, 60 kB long."""
    index = an_index(options=IndexOptions(memory_limit_bytes=2_000_000))
    index.register(PodId("b"), model="m", topology=FULL)
    tell(index, 0, None, STORE)
    before = index.memory_bytes()
    for number in range(64):
        text = long_text(number)
        events: list[Event] = [
            BlockRemoved(block_hashes=(7,), group_idx=0, ownership=text),
            replace(STORE, block_hashes=(number + 10, number + 110), extra_keys=((text,), None)),
            BlockRemoved(block_hashes=(number + 10, number + 110), group_idx=0),
        ]
        index.apply(PodId("b"), encode_batch(events))
        index.enforce_limits()
    index.check_integrity()
    assert index.memory_bytes() - before < 500_000
    (first, *_) = rows(index)
    assert first == (0, "exact", 8, 8)


def test_a_salt_that_was_never_told_finds_nothing_and_one_that_was_finds_its_own() -> None:
    index = an_index()
    tell(index, 0, None, replace(STORE, extra_keys=((long_text(1),), None)))
    for salt, held in ((None, 0), (long_text(1), 8), (long_text(2), 0)):
        request = Request(model="m", token_ids=PROMPT, cache_salt=salt)
        assert [row.lower for row in index.score(request).rows] == [held]
