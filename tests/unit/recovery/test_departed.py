"""Blocks that runs have given back count until they are handed out again, or until it is over."""

from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.ids import BlockId
from kvbraid.recovery.departed import Departed
from kvbraid.recovery.ledgers import Ledgers, RecoveryOptions
from kvbraid.recovery.run import GivenBack, Run
from kvbraid.recovery.tiers import NO_TIERS

from tests.unit.recovery.test_states_inside import TOPOLOGY as STATES_INSIDE

RUN = Run(
    request=1,
    num_tokens=9,
    num_prompt_tokens=9,
    num_known_tokens=9,
    num_local_tokens=0,
    num_loaded_tokens=8,
    num_processed_tokens=8,
    num_computed_tokens=9,
    ended_tables=[[BlockId(3), BlockId(4)], [BlockId(0), BlockId(5)]],
)
GONE = [GivenBack(1, 0, BlockId(6)), GivenBack(1, 1, BlockId(7))]


def test_a_block_that_is_handed_out_again_counts_no_more() -> None:
    departed = Departed()
    assert not departed
    departed.end(RUN._replace(given_back=GONE), 5)
    departed.give_back(2, GONE)
    departed.hand_out([BlockId(4), BlockId(7), BlockId(9)])
    (run,) = departed.ended
    assert run.ended_tables == [[3, 0], [0, 5]]
    assert list(run.given_back) == GONE[:1]
    assert departed.given_back(2) == GONE[:1]


def test_a_run_counts_until_its_last_step_is_processed_and_what_it_gave_back_until_it_ends() -> (
    None
):
    departed = Departed()
    departed.end(RUN, 5)
    departed.give_back(2, GONE)
    departed.processed(4)
    assert departed.ended == [RUN]
    departed.processed(5)
    assert departed.ended == []
    assert departed.given_back(2) == GONE
    departed.leave(2)
    assert departed.given_back(2) == ()
    departed.processed(6)
    assert not departed


def test_a_block_that_a_state_is_copied_into_counts_no_more() -> None:
    """No table gets this block: the copy is what others find; its request goes on as it was."""
    cache = CacheManager(CacheConfig(num_blocks=20, topology=STATES_INSIDE))
    request = cache.add(range(21))
    for tokens in (20, 1):
        cache.start_step()
        assert cache.allocate([Need(request=request, num_new_tokens=tokens)]).num_fit
    ((_, destination),) = cache.copy().take_work().copies
    ledgers = Ledgers(cache, NO_TIERS, RecoveryOptions())
    ledgers.departed.give_back(2, [GivenBack(1, 0, destination)])
    ledgers.take_work(caller_frees=False)
    assert ledgers.departed.given_back(2) == []
