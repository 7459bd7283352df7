"""Held batches: what they cost, and how the work grows with the holes between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events.held import OVERHEAD_BYTES, HeldBatches
from kvbraid.events.sequence import Deliver, Effect, Lose, SequenceTracker


class CountedNumber(int):
    """A number that counts how often numbers of its kind are compared by size."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedNumber.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        CountedNumber.compared += 1
        return int(self) > int(other)

    __hash__ = int.__hash__


def comparisons_to_settle(num_holes: int) -> int:
    """Hold every other number while a replay hangs, then give it up."""
    tracker = SequenceTracker(hold_limit_bytes=1 << 30)
    tracker.connected()
    for index in range(num_holes):
        tracker.message(CountedNumber(2 * index + 1), b"%d" % index)
    CountedNumber.compared = 0
    out = tracker.replay_failed()
    tracker.check_integrity()
    assert sum(isinstance(item, Lose) for item in out) == num_holes
    assert sum(isinstance(item, Deliver) for item in out) == num_holes
    return CountedNumber.compared


def test_holes_are_settled_with_logarithmic_work_each() -> None:
    # One in the heap is compared with at most two others per level, and there are eleven levels.
    assert comparisons_to_settle(2_000) <= 2_000 * 2 * 14


def test_empty_batches_are_not_held_for_free() -> None:
    tracker = SequenceTracker(hold_limit_bytes=100 * OVERHEAD_BYTES)
    tracker.connected()
    for seq in range(1, 1_001):
        tracker.message(seq, b"")
    assert tracker.counts.overflowed == 900
    tracker.check_integrity()


def test_a_number_is_held_once() -> None:
    held = HeldBatches()
    held.hold(3, b"x")
    with pytest.raises(AssertionError):
        held.hold(3, b"y")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_held_batches_are_a_table_whose_lowest_number_is_known(
    steps: list[tuple[bool, int]],
) -> None:
    held, model = HeldBatches(), dict[int, bytes]()
    for is_taken, seq in steps:
        if is_taken:
            assert held.take(seq) == model.pop(seq, None)
        elif seq not in held:
            held.hold(seq, b"%d" % seq)
            model[seq] = b"%d" % seq
        held.check_integrity()
        assert held.lowest() == min(model, default=None)
        assert sorted(held.numbers()) == sorted(model)
    held.clear()
    held.check_integrity()


def test_what_was_held_is_delivered_in_order() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    for seq in (4, 2, 3):
        tracker.replayed(seq, b"%d" % seq)
    out: list[Effect] = [*tracker.replayed(0, b"0"), *tracker.replayed(1, b"1")]
    assert [item.seq for item in out if isinstance(item, Deliver)] == [0, 1, 2, 3, 4]
