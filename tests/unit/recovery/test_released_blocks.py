"""What runs have read and given back counts until no report can mean it, whoever has it now."""

import pytest
from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.loads import NO_TIERS
from kvbraid.recovery import GivenBack, RecoveryPlan, Run
from kvbraid.recovery.ledger.contents import Content, Contents, block_of
from kvbraid.recovery.ledger.open_loads import Moment, OpenLoads
from kvbraid.recovery.ledger.released_blocks import ReleasedBlocks
from kvbraid.recovery.ledger.state import RecoveryOptions, RecoveryState

from tests.unit.recovery.topologies import STATES_INSIDE

RUN = Run(
    request=1,
    num_tokens=9,
    num_prompt_tokens=9,
    num_known_tokens=9,
    num_local_tokens=0,
    num_loaded_tokens=8,
    num_processed_tokens=8,
    num_computed_tokens=9,
)
TABLES = [[BlockId(3), BlockId(4)], [BlockId(0), BlockId(5)]]
GONE = [GivenBack(1, 0, BlockId(6)), GivenBack(1, 1, BlockId(7))]
FILLED = {(1, 0): 0, (1, 1): 0}
NUM_BLOCKS, SIZES = 20, [4, 4]


def released_with_a_load(late_steps: int) -> ReleasedBlocks:
    """Request 1 has ended and request 2 goes on; both have read what load 0 brought."""
    released = ReleasedBlocks(NUM_BLOCKS, SIZES, late_steps)
    released.begin(0)
    since = released.now
    released.give_back(1, GONE, since, FILLED)
    released.end(RUN, TABLES, last_step=5, load=0)
    released.give_back(2, GONE, since, FILLED)
    return released


def test_a_block_that_is_handed_out_again_leaves_what_was_read_with_a_number_of_its_own() -> None:
    released = released_with_a_load(late_steps=1)
    released.hand_out([BlockId(4), BlockId(7), BlockId(9)])
    released.catch_up()
    past = released.past()
    (run,) = past.ended
    assert sorted(past.former) == [4, 7]
    was_4, was_7 = (BlockId(NUM_BLOCKS + past.former.index(BlockId(b))) for b in (4, 7))
    assert run.ended_tables == [[3, was_4], [0, 5]]
    assert run.given_back == [GONE[0], GONE[1]._replace(block_id=was_7)]
    assert past.given_back == {2: list(run.given_back)}
    assert released.meant().requests == {1}
    assert released.meant().blocks == {4, 7}


def test_two_who_read_the_same_name_the_same_and_two_who_did_not_do_not() -> None:
    released = released_with_a_load(late_steps=1)
    released.hand_out([BlockId(7)])
    released.give_back(3, GONE[1:], released.now)
    released.hand_out([BlockId(7)])
    released.catch_up()
    past = released.past()
    ((*_, first),) = [past.given_back[2]]
    assert first == past.ended[0].given_back[1]
    assert first != past.given_back[3][0]
    assert past.former == [7, 7]


def test_what_was_read_counts_until_no_report_on_its_load_can_come() -> None:
    released = released_with_a_load(late_steps=2)
    released.hand_out([BlockId(7)])
    released.loads.end(0)
    for step in (5, 6):
        released.processed(step)
        released.catch_up()
        assert len(released.past().given_back[2]) == 2
        assert released.past().ended
    released.processed(7)
    released.catch_up()
    # What the block still holds counts as long as the run lasts; what it held no longer counts.
    assert released.past() == ([], [], {2: GONE[:1]})


def test_a_run_counts_until_its_last_step_is_processed_even_if_no_load_can_be_meant() -> None:
    released = released_with_a_load(late_steps=0)
    released.loads.end(0)
    released.processed(4)
    released.hand_out([BlockId(4)])
    released.catch_up()
    (run,) = released.past().ended
    assert run.ended_tables == [[3, 0], [0, 5]]
    assert released.is_in_flight(1)
    released.processed(5)
    assert released.past().ended == []
    assert not released.is_in_flight(1)


def test_what_is_known_to_be_garbage_was_judged() -> None:
    released = released_with_a_load(late_steps=1)
    released.hand_out([BlockId(7)])
    released.catch_up()
    assert released.past().former == [7]
    released.judged(RecoveryPlan(tainted=(BlockId(3),), lost=(BlockId(NUM_BLOCKS),)))
    past = released.past()
    assert past.ended[0].ended_tables == [[0, 4], [0, 5]]
    assert past.given_back == {2: GONE[:1]}


def test_a_block_that_a_state_is_copied_into_holds_something_new() -> None:
    """No table gets this block: the copy is what others find; its request goes on as it was."""
    cache = CacheManager(CacheConfig(num_blocks=20, topology=STATES_INSIDE))
    request = cache.add(range(21))
    for tokens in (20, 1):
        cache.start_step()
        assert cache.allocate([Need(request=request, num_new_tokens=tokens)]).num_fit
    ((_, destination),) = cache.copy().take_work().copies
    ledgers = RecoveryState(cache, NO_TIERS, RecoveryOptions(late_steps=1))
    ledgers.released.begin(0)
    ledgers.transfers._num_begun = 1
    ledgers.released.give_back(2, [GivenBack(1, 0, destination)], ledgers.released.now)
    ledgers.take_work(caller_frees=False)
    ledgers.catch_up({})
    assert ledgers.released.meant().blocks == {destination}


def test_a_content_is_one_from_one_handing_out_to_the_next() -> None:
    contents = Contents()
    contents.hand_out([BlockId(7)])  # 1
    contents.hand_out([BlockId(7), BlockId(8)])  # 2
    history = contents.catch_up()
    before, first = (history.content(Content(7), since) for since in (0, 1))
    assert before < 0
    assert first < 0
    assert before != first
    assert block_of(before) == block_of(first) == 7
    assert history.content(Content(7), 2) == 7
    assert history.content(Content(9), 0) == 9
    assert history.content(before, 0) == before
    assert history.contents([Content(0), Content(8), before], 0)[::2] == [0, before]
    assert contents.num_logged == 0


def test_reports_on_a_load_may_come_so_many_steps_after_its_end() -> None:
    loads = OpenLoads(late_steps=1)
    loads.begin(4)
    loads.processed()
    assert 4 in loads
    loads.end(4)
    loads.processed()
    assert 4 in loads
    assert loads.concern(Moment(num_loads=5))
    assert not loads.concern(Moment(num_loads=4))
    loads.processed()
    assert 4 not in loads
    assert not loads.concern(Moment(num_loads=5))


def test_there_are_no_negative_steps() -> None:
    with pytest.raises(
        InvalidValueError, match="late_steps is -1; expected an integer of at least 0"
    ):
        RecoveryOptions(late_steps=-1)


def test_a_run_that_ends_before_the_first_load_has_its_blocks_handed_out_too() -> None:
    released = ReleasedBlocks(NUM_BLOCKS, SIZES, 0)
    released.end(RUN, TABLES, last_step=5, load=None)
    released.hand_out([BlockId(4)])
    released.begin(0)
    released.catch_up()
    (run,) = released.past().ended
    assert run.ended_tables == [[3, 0], [0, 5]]


def released_with_two_runs_of_a_request() -> ReleasedBlocks:
    """While a load may fail, a run of request 1 gets block 8 and ends, and then the next one gets
    block 9; both compute from token 4 on."""
    released = ReleasedBlocks(NUM_BLOCKS, SIZES, 1)
    released.begin(0)
    for block in (8, 9):
        released.hand_out([BlockId(block)])
        released.start(1, 4)
        if block == 8:
            released.end(RUN, TABLES, last_step=5, load=None)
    return released


@pytest.mark.parametrize(("block", "is_of_the_first"), [(8, True), (9, False)])
def test_what_others_found_is_kept_with_the_run_that_computed_it(
    block: int, *, is_of_the_first: bool
) -> None:
    released = released_with_two_runs_of_a_request()
    found = GivenBack(1, 1, BlockId(block))
    released.found([found, found], [1, 1])
    released.hand_out([BlockId(block)])
    released.catch_up()
    past = released.past()
    (ended,) = past.ended
    kept = {True: list(ended.given_back), False: past.given_back.get(1, [])}
    assert kept == {
        is_of_the_first: [found._replace(block_id=BlockId(20))],
        not is_of_the_first: [],
    }
    assert past.former == [block]


def test_what_a_run_had_found_itself_or_nobody_registered_is_not_what_it_computed() -> None:
    released = released_with_two_runs_of_a_request()
    released.found([GivenBack(1, 0, BlockId(9))] * 3, [1, None, 7])
    released.catch_up()
    assert released.past().given_back == {}


def test_what_a_run_reads_after_the_point_that_it_goes_back_to_it_computes_now() -> None:
    released = released_with_two_runs_of_a_request()
    released.give_back(1, GONE, released.now)
    released.rewind(1, 4)
    released.catch_up()
    assert released.past().given_back == {1: GONE[:1]}
