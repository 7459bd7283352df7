"""What several ranks say together: everything that one of them says, each thing once."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kvbraid.ids import BlockId
from kvbraid.loads import Cause, Failures, GroupBlock, Record

NOTHING = Failures()
DISK = Record("disk", b"\x01")
SPOILING = {Cause.MISS, Cause.SHORT, Cause.CORRUPT}

POSITIONS = st.sets(st.integers(0, 3), max_size=2)
BLOCKS = st.integers(1, 4).map(BlockId)
REPORTS = st.builds(
    Failures,
    places=st.dictionaries(
        st.integers(1, 3), st.dictionaries(st.integers(0, 1), POSITIONS), max_size=2
    ),
    group_blocks=st.sets(st.builds(GroupBlock, st.integers(0, 1), BLOCKS), max_size=2),
    blocks=st.sets(BLOCKS, max_size=2),
    requests=st.sets(st.integers(1, 3), max_size=2),
    causes=st.dictionaries(
        st.builds(Record, st.just("disk"), st.binary(max_size=1)),
        st.sampled_from(Cause),
        max_size=2,
    ),
)


def said(report: Failures) -> set[object]:
    """Every single thing that a report says, but for causes."""
    return {
        *(
            (r, g, p)
            for r, groups in report.places.items()
            for g, own in groups.items()
            for p in own
        ),
        *(("pair", *pair) for pair in report.group_blocks),
        *(("block", block) for block in report.blocks),
        *(("request", request) for request in report.requests),
    }


@given(reports=st.lists(REPORTS, max_size=4))
def test_a_union_says_what_at_least_one_rank_says(reports: list[Failures]) -> None:
    union = Failures.union(reports)
    assert said(union) == set().union(*map(said, reports))
    assert union.causes.keys() == set().union(*(report.causes for report in reports))
    for record, cause in union.causes.items():
        causes = {report.causes[record] for report in reports if record in report.causes}
        assert cause in causes
        assert cause.spoils_record == any(each in SPOILING for each in causes)


@given(reports=st.lists(REPORTS, max_size=4), data=st.data())
def test_a_union_does_not_depend_on_order_or_repetition(
    reports: list[Failures], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations([*reports, *reports[:1]]))
    assert Failures.union(shuffled) == Failures.union(reports)
    half = data.draw(st.integers(0, len(reports)))
    parts = [Failures.union(reports[:half]), Failures.union(reports[half:])]
    assert Failures.union(parts) == Failures.union(reports)


def test_a_union_changes_no_report() -> None:
    one = Failures(places={1: {0: [2]}})
    Failures.union([one, Failures(places={1: {0: [3], 1: [4]}})])
    assert one == Failures(places={1: {0: [2]}})


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([Cause.TIMEOUT, Cause.MISS], Cause.MISS),
        ([Cause.IO_ERROR, Cause.TIMEOUT], Cause.IO_ERROR),
        ([Cause.SHORT, Cause.CORRUPT], Cause.CORRUPT),
    ],
)
def test_ranks_that_disagree_on_a_cause_give_the_one_that_spoils_the_record(
    causes: list[Cause], expected: Cause
) -> None:
    for order in (causes, causes[::-1]):
        union = Failures.union(Failures(causes={DISK: cause}) for cause in order)
        assert union.causes == {DISK: expected}


def test_causes_alone_are_no_failure_of_a_load() -> None:
    assert not NOTHING
    assert not Failures(causes={DISK: Cause.MISS})
    assert Failures(requests=[1])
    assert {cause for cause in Cause if cause.spoils_record} == SPOILING
