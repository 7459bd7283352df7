"""The ledger of shared blocks against a list of who waits for what, and what callers do wrong."""

from array import array
from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kvbraid.cache.tables import Places, TableEntry
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.recovery import Action, RecoveryPlan, RequestPlan
from kvbraid.recovery.ledger.owners import HandedOn, Ownership

BLOCK_SIZES = (4, 8)
REQUESTS = range(5)
BLOCKS = [BlockId(block) for block in range(1, 7)]


def group_of(block: BlockId) -> int:
    return block % 2


def whole_at(block: BlockId) -> int:
    """Block 1 and 2 are at position 0 of their groups, 3 and 4 at position 1, and so on."""
    return ((block - 1) // 2 + 1) * BLOCK_SIZES[group_of(block)]


class SharedTables:
    """Every request holds every block, except those that are missing."""

    def __init__(self, missing: Sequence[tuple[int, BlockId]] = ()) -> None:
        self.missing = missing

    def requests_of(self, block_ids: Sequence[BlockId]) -> Places:
        blocks = sorted(set(block_ids))
        rows = [
            (block, TableEntry(request, group_of(block), (block - 1) // 2))
            for block in blocks
            for request in REQUESTS
            if (request, block) not in self.missing
        ]
        ends = [sum(block <= last for block, _ in rows) for last in blocks]
        return Places(
            block_ids=memoryview(array("I", blocks)),
            ends=memoryview(array("I", ends)),
            requests=memoryview(array("Q", [place.request for _, place in rows])),
            groups=memoryview(array("I", [place.group for _, place in rows])),
            positions=memoryview(array("I", [place.position for _, place in rows])),
        )


def rewinds(
    request: int, resume: int, owns: Sequence[int] = (), waits: Mapping[int, int] | None = None
) -> RequestPlan:
    return RequestPlan(
        request=request,
        action=Action.REWIND,
        resume=resume,
        recompute=0,
        num_dropped_tokens=0,
        owner_of=tuple(BlockId(block) for block in owns),
        waits_for={BlockId(block): owner for block, owner in (waits or {}).items()},
    )


def gives_up(request: int, action: Action = Action.START_OVER) -> RequestPlan:
    return RequestPlan(request=request, action=action, resume=0, recompute=0, num_dropped_tokens=0)


def plan_of(*requests: RequestPlan, tainted: Sequence[int] | None = None) -> RecoveryPlan:
    owned = {block for each in requests for block in each.owner_of}
    return RecoveryPlan(
        requests={each.request: each for each in requests},
        tainted=tuple(sorted(owned if tainted is None else map(BlockId, tainted))),
    )


def ledger(*requests: RequestPlan) -> Ownership:
    made = Ownership(BLOCK_SIZES)
    assert not made.take(plan_of(*requests), SharedTables())
    made.check_integrity()
    return made


def test_a_waiter_is_released_when_the_whole_block_is_processed() -> None:
    owners = ledger(rewinds(0, 0, owns=[2, 4]), rewinds(1, 8, waits={2: 0, 4: 0}))
    assert owners.owner_of(0) == (2, 4)
    assert owners.waits_for(1) == {2: 0, 4: 0}
    assert owners.processed(0, 7) == ()
    assert owners.waits_for(1) == {4: 0}
    assert owners.processed(0, 8) == (1,)
    assert not owners.is_waiting(1)
    assert owners.blocks == frozenset()


def test_an_owner_that_leaves_hands_on_to_the_lowest_waiter_of_each_block() -> None:
    owners = ledger(
        rewinds(0, 0, owns=[2, 4, 6]),
        rewinds(2, 8, waits={2: 0, 4: 0}),
        rewinds(1, 4, waits={2: 0}),
    )
    assert owners.leaves(0) == HandedOn({BlockId(2): 1, BlockId(4): 2})
    owners.check_integrity()
    assert owners.blocks == {2, 4}
    assert owners.waits_for(2) == {2: 1}
    assert owners.is_waiting(1), "it waits for the decision"


@pytest.mark.parametrize("action", [Action.START_OVER, Action.FAIL, Action.TAINTED_OUTPUT])
def test_a_plan_lets_those_leave_that_do_not_stay(action: Action) -> None:
    owners = ledger(rewinds(0, 0, owns=[2]), rewinds(1, 4, waits={2: 0}))
    handed = owners.take(plan_of(gives_up(0, action)), SharedTables())
    assert handed == HandedOn({BlockId(2): 1})
    owners.check_integrity()


def test_waiters_are_preempted_latest_first_and_owners_among_them_last() -> None:
    owners = ledger(
        rewinds(0, 0, owns=[2]),
        rewinds(1, 4, owns=[4], waits={2: 0}),
        rewinds(2, 8, waits={4: 1}),
        rewinds(3, 8, waits={4: 1}),
    )
    assert owners.waiters() == (3, 2, 1)


# What a caller can do wrong.

WRONG: dict[str, tuple[RecoveryPlan, str]] = {
    "it waits for a later request": (
        plan_of(rewinds(2, 0, owns=[2]), rewinds(1, 4, waits={2: 2})),
        r"request 1 waits for block 2 of request 2, .* take plans",
    ),
    "nobody writes the block": (
        plan_of(rewinds(0, 0), rewinds(1, 4, waits={2: 0})),
        r"request 1 waits for block 2 of request 0",
    ),
    "somebody else writes it": (
        plan_of(rewinds(0, 0, owns=[2]), rewinds(1, 0), rewinds(2, 4, waits={2: 1})),
        r"request 2 waits for block 2 of request 1",
    ),
    "two write one block": (
        plan_of(rewinds(0, 0, owns=[2]), rewinds(1, 0, owns=[2])),
        r"request 1 resumes at 0 and cannot own block 2, which is whole at 4 tokens or has an",
    ),
    "the block is whole": (
        plan_of(rewinds(0, 4, owns=[2])),
        r"request 0 resumes at 4 and cannot own block 2, which is whole at 4 tokens",
    ),
    "it does not hold the block": (
        plan_of(rewinds(4, 0, owns=[6])),
        r"request 4 owns block 6, which is not in its table; decide again",
    ),
    "it would write what it waits for": (
        plan_of(rewinds(1, 4), tainted=[6]),
        r"request 1 goes back to 4 tokens and would write block 4, which request 0 writes; decide",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_plan_changes_nothing(case: str) -> None:
    owners = ledger(rewinds(0, 0, owns=[4]), rewinds(1, 8, waits={4: 0}))
    plan, message = WRONG[case]
    with pytest.raises(InvalidValueError, match=message):
        owners.take(plan, SharedTables(missing=[(4, BlockId(6))]))
    owners.check_integrity()
    assert owners.blocks == {4}
    assert owners.waits_for(1) == {4: 0}


def test_an_integrity_check_sees_a_wait_in_a_circle() -> None:
    owners = ledger(rewinds(1, 0, owns=[2]), rewinds(2, 4, waits={2: 1}))
    owners._blocks[BlockId(2)].owner = 3
    with pytest.raises(AssertionError, match="in a circle"):
        owners.check_integrity()


# Any order of plans, progress and leaving.


class Sharers(RuleBasedStateMachine):
    """The model is a plain list of (block, owner, who holds it and waits, decided)."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = Ownership(BLOCK_SIZES)
        self.rows: dict[BlockId, tuple[int, set[int], bool]] = {}

    @rule(
        bad=st.sets(st.sampled_from(BLOCKS), min_size=1),
        actions=st.lists(
            st.sampled_from([Action.REWIND] * 4 + [Action.START_OVER]), min_size=5, max_size=5
        ),
        affected=st.sets(st.sampled_from(REQUESTS), min_size=1),
    )
    def decide(self, bad: set[BlockId], actions: list[Action], affected: set[int]) -> None:
        """Everybody who is concerned by what is not whole is decided for, as with `decide`."""
        bad |= self.rows.keys()
        for owner, waiters, _ in self.rows.values():
            affected |= {owner, *waiters}
        staying = [r for r in sorted(affected) if actions[r] is Action.REWIND]
        rows = {}
        for block in sorted(bad):
            if staying:
                rows[block] = (staying[0], set(staying[1:]), True)
        plans = [
            rewinds(
                r,
                0 if r == staying[0] else 100,
                owns=[block for block, (owner, _, _) in rows.items() if owner == r],
                waits={block: owner for block, (owner, waits, _) in rows.items() if r in waits},
            )
            if actions[r] is Action.REWIND
            else gives_up(r)
            for r in sorted(affected, reverse=True)
        ]
        assert not self.owners.take(plan_of(*plans, tainted=sorted(bad)), SharedTables())
        self.rows = rows

    @rule(request=st.sampled_from(REQUESTS), num_tokens=st.integers(0, 25))
    def process(self, request: int, num_tokens: int) -> None:
        waiting = {r for r in REQUESTS if self.waits(r)}
        self.rows = {
            block: row
            for block, row in self.rows.items()
            if not (row[0] == request and row[2] and whole_at(block) <= num_tokens)
        }
        released = tuple(r for r in REQUESTS if r in waiting and not self.waits(r))
        assert self.owners.processed(request, num_tokens) == released

    @rule(request=st.sampled_from(REQUESTS))
    def leave(self, request: int) -> None:
        handed = {}
        for block, (owner, waiters, _) in list(self.rows.items()):
            waiters.discard(request)
            if owner == request:
                del self.rows[block]
                if waiters:
                    heir, *rest = sorted(waiters)
                    handed[block] = heir
                    self.rows[block] = (heir, set(rest), False)
        assert self.owners.leaves(request).owners == handed

    @precondition(lambda self: any(not decided for _, _, decided in self.rows.values()))
    @rule()
    def take_a_plan_that_knows_nothing_of_heirs(self) -> None:
        handed = self.owners.take(RecoveryPlan(), SharedTables())
        assert handed.owners == {b: row[0] for b, row in self.rows.items() if not row[2]}

    def waits(self, request: int) -> bool:
        return any(
            request in waiters or (owner == request and not decided)
            for owner, waiters, decided in self.rows.values()
        )

    @invariant()
    def the_ledger_says_what_the_list_says(self) -> None:
        self.owners.check_integrity()
        assert self.owners.blocks == self.rows.keys()
        for request in REQUESTS:
            owned = tuple(b for b, row in sorted(self.rows.items()) if row[0] == request)
            awaited = {b: row[0] for b, row in self.rows.items() if request in row[1]}
            assert self.owners.owner_of(request) == owned
            assert self.owners.waits_for(request) == awaited
            assert self.owners.is_waiting(request) == self.waits(request)
        assert set(self.owners.waiters()) == {
            r for _, waits, _ in self.rows.values() for r in waits
        }


TestSharers = Sharers.TestCase
