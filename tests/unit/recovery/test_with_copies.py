"""Decisions about garbage of which tiers have made copies."""

from collections.abc import Collection

from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import RecoveryPlan
from kvbraid.recovery.decision.copies import with_copies


def decided(failures: Failures) -> RecoveryPlan:
    """Place p of request r is block 10 r + p."""
    places = failures.places.items()
    blocks = [10 * r + p for r, groups in places for own in groups.values() for p in own]
    return RecoveryPlan(tainted=tuple(map(BlockId, sorted(blocks))))


def place(request: int, position: int) -> Failures:
    return Failures(places={request: {0: {position}}})


def test_copies_of_copies_are_garbage_and_each_block_is_told_once() -> None:
    copies = {11: place(2, 1), 21: place(3, 1)}
    told: list[list[int]] = []

    def forget(blocks: Collection[BlockId]) -> Failures:
        told.append([*blocks])
        return Failures.union(copies[block] for block in blocks if block in copies)

    plan = with_copies(decided, place(1, 1), lambda plan: {*plan.tainted}, forget)
    assert plan.tainted == (11, 21, 31)
    assert told == [[11], [21], [31]]


def test_tiers_that_say_the_same_again_are_asked_no_more() -> None:
    plan = with_copies(decided, place(1, 1), lambda plan: {*plan.tainted}, lambda _: place(1, 1))
    assert plan.tainted == (11,)


def test_what_a_block_held_before_it_was_handed_out_again_is_garbage_too() -> None:
    plan = RecoveryPlan(tainted=(BlockId(3),), lost=(BlockId(9),))
    assert plan.garbage([BlockId(5), BlockId(7)], num_blocks=8) == {3, 7}
