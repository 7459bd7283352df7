"""Two requests share blocks whose load fails: a decision, a live cache and the ledger together."""

import pytest
from kvbraid.cache import CacheManager, Need
from kvbraid.loads import Failures
from kvbraid.recovery import Action, Run, State, decide, read, snapshot_of, write
from kvbraid.recovery.ledger.owners import HandedOn, Ownership

from tests.unit.cache.caches import config, full

TOKENS = list(range(18))


class Shared:
    """The first request loads 16 tokens, the second one finds them while they are being loaded."""

    def __init__(self) -> None:
        self.cache = CacheManager(config(full(4), num_blocks=20))
        self.owners = Ownership([4])
        self.first, self.second = (self.cache.add([*TOKENS, last]) for last in (98, 99))
        external = {self.first: 16, self.second: 0}
        self.cache.start_step()
        for request, num_external_tokens in external.items():
            need = Need(
                request=request,
                num_new_tokens=3,
                num_hit_tokens=self.cache.match(request).num_tokens,
                num_external_tokens=num_external_tokens,
            )
            assert self.cache.allocate([need]).num_fit == 1
        self.cache.take_work()
        runs = [
            Run(
                request=request,
                num_tokens=19,
                num_prompt_tokens=19,
                num_known_tokens=19,
                num_local_tokens=16 - loaded,
                num_loaded_tokens=loaded,
                num_processed_tokens=16,
                num_computed_tokens=19,
            )
            for request, loaded in external.items()
        ]
        failures = Failures(places={self.first: {0: [1]}})
        self.state = State(snapshot=snapshot_of(self.cache, runs), runs=runs, failures=failures)
        self.plan = decide(self.cache, runs, failures)
        self.cache.recover(self.plan.recovery)
        self.handed_on = self.owners.take(self.plan, self.cache.tables)

    def compute(self, request: int, num_tokens: int) -> None:
        need = Need(request=request, num_new_tokens=num_tokens)
        assert self.cache.allocate([need]).num_fit == 1
        self.cache.take_work()


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_the_first_request_owns_and_the_second_waits(shared: Shared) -> None:
    (bad,) = shared.cache.blocks(shared.first)[0][1:2]
    assert shared.cache.blocks(shared.second)[0][1] == bad
    first, second = shared.plan.requests.values()
    assert (first.action, first.resume, first.owner_of) == (Action.REWIND, 4, (bad,))
    assert (second.action, second.resume, second.waits_for) == (
        Action.REWIND,
        16,
        {bad: shared.first},
    )
    assert not shared.handed_on
    assert shared.owners.is_waiting(shared.second)


def test_from_the_state_as_json_the_decision_is_the_same(shared: Shared) -> None:
    assert read(write(shared.state)).decide() == shared.plan


def test_the_second_goes_on_when_the_block_is_computed_and_not_when_it_is_scheduled(
    shared: Shared,
) -> None:
    shared.compute(shared.first, 3)
    assert shared.owners.processed(shared.first, 7) == ()
    shared.compute(shared.first, 1)
    assert shared.owners.is_waiting(shared.second)
    assert shared.owners.processed(shared.first, 8) == (shared.second,)


def test_if_the_first_is_aborted_the_second_inherits_and_finds_no_garbage(shared: Shared) -> None:
    (bad,) = shared.cache.blocks(shared.first)[0][1:2]
    shared.cache.release([shared.first])
    assert shared.owners.leaves(shared.first) == HandedOn({bad: shared.second})
    assert shared.owners.is_waiting(shared.second)
    shared.cache.preempt([shared.second])
    assert not shared.owners.leaves(shared.second)
    assert shared.cache.match(shared.second).num_tokens == 4
    assert shared.cache.match(shared.cache.add(TOKENS)).num_tokens == 4
