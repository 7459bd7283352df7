"""The quarantine against a plain list of holds, and what callers do wrong."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.loads import Quarantine


def blocks(*ids: int) -> list[BlockId]:
    return [BlockId(each) for each in ids]


def test_blocks_are_freed_when_the_last_rank_has_reported() -> None:
    held = Quarantine()
    held.add(7, blocks(3, 1), [0, 1])
    assert (held.num_blocks, sorted(held.blocks), 7 in held) == (2, [1, 3], True)
    assert held.ended(7, 1) == []
    assert held.num_blocks == 2
    assert held.ended(7, 0) == [3, 1]
    assert (held.num_blocks, 7 in held) == (0, False)


def test_reports_that_say_nothing_new_are_counted() -> None:
    held = Quarantine()
    held.add(7, blocks(3), [0, 1])
    held.ended(7, 0)
    assert held.ended(7, 0) == []
    assert (held.num_unknown_reports, held.num_repeated_reports) == (0, 1)
    assert held.ended(7, 2) == held.ended(9, 0) == []
    assert held.ended(7, 1) == [3]
    assert held.ended(7, 1) == []
    assert (held.num_unknown_reports, held.num_repeated_reports) == (3, 1)


def test_a_transfer_without_blocks_is_not_remembered() -> None:
    held = Quarantine()
    held.add(7, [], [0])
    assert 7 not in held


@pytest.mark.parametrize(
    ("transfer", "ids", "ranks", "message"),
    [
        (8, [1], [], r"transfer 8 is to be ended by ranks \[\]; expected some rank: .* free the"),
        (7, [1], [0, 1], r"transfer 7 is to be ended by ranks \[0, 1\]; expected ranks \[1\]"),
        (7, [1, 0], [1], r"block 0 of transfer 7 is not held; leave null blocks out"),
    ],
    ids=["no rank", "a rank that has reported", "the null block"],
)
def test_a_wrong_hold_changes_nothing(
    transfer: int, ids: list[int], ranks: list[int], message: str
) -> None:
    held = Quarantine()
    held.add(7, blocks(3), [0, 1])
    held.ended(7, 0)
    with pytest.raises(InvalidValueError, match=message):
        held.add(transfer, blocks(*ids), ranks)
    held.check_integrity()
    assert held.blocks == {3}
    assert held.ended(7, 1) == [3]


def test_an_integrity_check_sees_a_lost_hold() -> None:
    held = Quarantine()
    held.add(7, blocks(3), [0])
    held._held.clear()
    with pytest.raises(AssertionError, match="differ"):
        held.check_integrity()


class Transfers(RuleBasedStateMachine):
    """The model is the list of all holds and reports ever made."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Quarantine()
        self.pending: dict[int, set[int]] = {}
        self.holds: list[tuple[int, BlockId]] = []
        self.num_wasted = 0

    @rule(
        transfer=st.integers(0, 3),
        ids=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        ranks=st.sets(st.integers(0, 2), min_size=1),
    )
    def hold(self, transfer: int, ids: list[int], ranks: set[int]) -> None:
        ranks = self.pending.setdefault(transfer, set(ranks))
        self.held.add(transfer, blocks(*ids), ranks)
        self.holds += [(transfer, block) for block in blocks(*ids)]

    @rule(transfer=st.integers(0, 4), rank=st.integers(0, 3))
    def report(self, transfer: int, rank: int) -> None:
        due = self.pending.get(transfer, set())
        if rank not in due:
            self.num_wasted += 1
        due.discard(rank)
        freed = []
        if transfer in self.pending and not due:
            del self.pending[transfer]
            freed = [block for each, block in self.holds if each == transfer]
            self.holds = [hold for hold in self.holds if hold[0] != transfer]
        assert self.held.ended(transfer, rank) == freed

    @invariant()
    def nothing_is_lost(self) -> None:
        self.held.check_integrity()
        assert self.held.blocks == {block for _, block in self.holds}
        assert {each for each in range(5) if each in self.held} == self.pending.keys()
        assert self.held.num_blocks == len({block for _, block in self.holds})
        assert self.held.num_unknown_reports + self.held.num_repeated_reports == self.num_wasted


TestTransfers = Transfers.TestCase
