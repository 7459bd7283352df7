"""A fixed part of the small worlds is searched, and planted bugs are found in them."""

from collections.abc import Callable
from itertools import combinations_with_replacement
from random import Random
from typing import Final

import pytest
from kvbraid.cache import CacheManager
from kvbraid.cache.failed_loads import Recovery
from kvbraid.ids import BlockId
from kvbraid.loads import Quarantine
from kvbraid.recovery.ledger.owners import HandedOn, Ownership
from kvbraid.recovery.ledger.state import RecoveryState

from tests.ghost.world import twins
from tests.ghost.world.run import told
from tests.ghost.world.search import Search
from tests.ghost.world.settings import Group, Setting, settings
from tests.ghost.world.world import World, begin

FAMILIES: Final = ("full", "window", "chunk", "state")
PAIRS: Final = [f"{a}+{b}" for a, b in combinations_with_replacement(FAMILIES, 2)]
WORLDS_OF_A_PAIR: Final = 7
STATES_OF_A_WORLD: Final = 350


def worlds_of(pair: str) -> list[Setting]:
    """As many worlds as fit into a test, spread over all that differs between them."""
    own = [setting for setting in settings(num_loads=2, num_troubles=2) if setting.pair == pair]
    return own[:: max(1, len(own) // WORLDS_OF_A_PAIR)]


def test_the_slice_has_every_pair_of_kinds_and_most_of_what_differs() -> None:
    chosen = [setting for pair in PAIRS for setting in worlds_of(pair)]

    assert {setting.pair for setting in settings()} == set(PAIRS)
    assert any(setting.late_steps for setting in settings())
    for name in ("num_shared_blocks", "num_missing_blocks", "num_steps_in_flight", "is_async"):
        assert {getattr(s, name) for s in chosen} == {getattr(s, name) for s in settings()}


@pytest.mark.parametrize("pair", PAIRS)
def test_no_bad_state_is_reached(pair: str) -> None:
    for setting in worlds_of(pair):
        found = Search(begin(setting), max_states=STATES_OF_A_WORLD).run()
        assert not found.bad, told(setting, found.bad[0])


def test_a_world_is_searched_to_its_end() -> None:
    setting = Setting(groups=(Group.CHUNK_1, Group.CHUNK_1), is_async=False, num_troubles=1)

    found = Search(begin(setting), max_states=10_000).run()

    assert found.is_complete
    assert not found.bad
    assert found.states > 100


def test_every_exception_of_an_image_is_of_a_field_that_states_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met: set[tuple[str, str]] = set()
    rules_of = twins.rules_of

    def noting(kind: type, value: object) -> list[tuple[str, twins.Rule]]:
        names = getattr(kind, "_fields", None) or twins.fields_of(kind, value)
        met.update((kind.__name__, name) for name in names)
        return rules_of(kind, value)

    monkeypatch.setattr(twins, "rules_of", noting)
    ranks = Setting(groups=(Group.FULL, Group.STATE), num_ranks=2)
    short = Setting(groups=ranks.groups, is_async=False, num_missing_blocks=1)
    for setting in (ranks, short):
        Search(begin(setting), max_states=600).run()

    assert twins.EXCEPTIONS.keys() <= met


@pytest.mark.parametrize("seed", range(8))
def test_it_makes_no_difference_which_blocks_are_handed_out_first(seed: int) -> None:
    """States are the same if they differ in the names of blocks alone: the same happens then."""
    random = Random(seed)
    setting = random.choice([*settings()])
    world, other = begin(setting), begin(setting)
    blocks = other.cache.pool.take(other.cache.pool.num_free)
    other.cache.pool.free(random.sample(blocks, len(blocks)))
    for _ in range(15):
        moves, others = [*world.moves()], [*other.moves()]
        assert [move.name for move in moves] == [move.name for move in others]
        if not moves:
            return
        at = random.randrange(len(moves))
        after, likewise = moves[at].outcome, others[at].outcome
        assert isinstance(after, World), after
        assert isinstance(likewise, World), likewise
        assert after.key() == likewise.key()
        world, other = after, likewise


PATHS: Final = {
    "a load fails in its last token's block alone": (
        Setting(groups=(Group.FULL, Group.WINDOW_1)),
        ["add 0", "schedule (load of 5)", "load 0, rank 0 fails: group 0 position 2"],
    ),
    "a late failure reaches a request that hit the block and has given it back": (
        Setting(groups=(Group.CHUNK_1, Group.STATE), num_steps_in_flight=2, num_loads=1),
        [
            *("add 0", "schedule (load of 2)", "add 1", "update"),
            *("load 0, rank 0 fails silently: all", "schedule", "update", "schedule"),
            "fault 0 is told",
        ],
    ),
    "a block that was given back is handed out again before its failure is told": (
        Setting(groups=(Group.FULL, Group.STATE), is_async=False, num_loads=1, late_steps=2),
        [
            *("add 0", "schedule (load of 2) (fails silently: all)", "update"),
            *("add 1", "schedule", "fault 0 is told"),
        ],
    ),
    "the load of a request that waits for others turns out to have failed": (
        Setting(groups=(Group.FULL, Group.FULL), is_async=False, findable="scheduled"),
        [
            *(
                "add 1",
                "add 0",
                "schedule (load of 2) (load of 2) (fails: all) (fails silently: all)",
            ),
            *("update", "fault 1 is told"),
        ],
    ),
}
"""What once was bad, or led to no end."""


@pytest.mark.parametrize("name", PATHS)
def test_what_once_was_bad_leads_to_an_end(name: str) -> None:
    setting, path = PATHS[name]
    world = begin(setting)
    for step in path:
        outcome = next(move.outcome for move in world.moves() if move.name == step)
        assert isinstance(outcome, World), outcome
        world = outcome
    for _ in range(100):
        calm = [move for move in world.moves() if move.is_calm and "(load" not in move.name]
        if world.is_end():
            return
        # Steps in flight end before the next one begins.
        calm.sort(key=lambda move: move.name.startswith("schedule"))
        assert isinstance(calm[0].outcome, World), calm[0].outcome
        world = calm[0].outcome
    raise AssertionError("it does not end")


# Bugs.


def _forget_nothing(patch: pytest.MonkeyPatch) -> None:
    recover = CacheManager.recover

    def lax(self: CacheManager, recovery: Recovery) -> None:
        object.__setattr__(recovery, "forget", ())
        recover(self, recovery)

    patch.setattr(CacheManager, "recover", lax)


def _free_the_quarantine_with_the_first_rank(patch: pytest.MonkeyPatch) -> None:
    ended = Quarantine.ended

    def early(self: Quarantine, transfer: int, rank: int) -> list[BlockId]:
        if transfer in self:
            self._transfers[transfer].pending.intersection_update({rank})
        return ended(self, transfer, rank)

    patch.setattr(Quarantine, "ended", early)


def _lose_what_an_owner_leaves(patch: pytest.MonkeyPatch) -> None:
    def leaves(self: Ownership, request: int) -> HandedOn:
        for block in [*self._owned.get(request, ())]:
            self._forget(block)
        return HandedOn({})

    patch.setattr(Ownership, "leaves", leaves)


def _hold_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveryState, "hold", lambda self, load: None)


# A waiter that goes on too early is not among these: the device runs steps in order, so what is
# scheduled is computed by then. tests/unit/recovery/test_owners.py sees that bug.
BUGS: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Setting]]] = {
    "nothing is forgotten": (
        _forget_nothing,
        Setting(groups=(Group.FULL, Group.WINDOW_1), is_async=False, findable="scheduled"),
    ),
    "quarantine is freed with the first rank": (
        _free_the_quarantine_with_the_first_rank,
        Setting(groups=(Group.FULL, Group.FULL), num_ranks=2, num_troubles=1),
    ),
    "an owner leaves and nobody inherits": (
        _lose_what_an_owner_leaves,
        Setting(groups=(Group.FULL, Group.FULL), is_async=False, findable="scheduled"),
    ),
    "what a rank may still write is not held": (
        _hold_nothing,
        Setting(groups=(Group.FULL, Group.STATE), num_troubles=1),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, setting = BUGS[name]
    plant(monkeypatch)

    assert Search(begin(setting), max_states=20_000, max_bad=1).run().bad
