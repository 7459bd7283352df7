"""A few lines of a kind are written per period, and the others are counted."""

import logging

import pytest
from kvbraid.service.journal import EVENTS, FIELDS, Journal, Problem, Rank

A, B = Rank("a", 0), Rank("b", 1)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(clock: Clock, caplog: pytest.LogCaptureFixture) -> Journal:
    caplog.set_level(logging.DEBUG, "kvbraid")
    return Journal(clock=clock, lines=2, period_s=60.0)


def test_a_line_has_its_parts_in_words_and_by_name(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.note("refused", A, "too\nlong", detail="bad_frames")
    journal.note("registered", Rank("a"), "model m")
    journal.note("stray", Rank(""), "a message", detail="unknown_topic")
    assert caplog.messages == [
        "pod a rank 0: refused bad_frames: too\\nlong",
        "pod a: registered: model m",
        "no pod: stray unknown_topic: a message",
    ]
    assert [getattr(record, FIELDS) for record in caplog.records] == [
        {"event": "refused", "pod": "a", "dp_rank": 0, "detail": "bad_frames"},
        {"event": "registered", "pod": "a"},
        {"event": "stray", "detail": "unknown_topic"},
    ]


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_has_its_level(
    journal: Journal, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    journal.note(event, A, "something")
    assert [record.levelno for record in caplog.records] == [EVENTS[event]]


def test_lines_above_the_limit_are_counted_and_the_count_is_told_after_the_period(
    journal: Journal, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        journal.note("state", A, f"state {number}")
    assert caplog.messages == [f"pod a rank 0: state: state {number}" for number in range(2)]
    caplog.clear()
    clock.now += 59.9
    journal.tell_left_out()
    assert caplog.messages == []
    clock.now += 0.1
    journal.tell_left_out()
    assert caplog.messages == ["pod a rank 0: state: 3 more such lines"]
    assert getattr(caplog.records[0], FIELDS)["left_out"] == 3
    journal.tell_left_out()
    assert len(caplog.messages) == 1


def test_the_next_line_after_the_period_tells_the_count_as_well(
    journal: Journal, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        journal.note("state", A, "before")
    clock.now += 60.0
    caplog.clear()
    for _ in range(3):
        journal.note("state", A, "after")
    assert caplog.messages == [
        "pod a rank 0: state: 1 more such lines",
        "pod a rank 0: state: after",
        "pod a rank 0: state: after",
    ]
    caplog.clear()
    journal.tell_left_out(is_last=True)  # The period is not over, but nothing comes after it.
    assert caplog.messages == ["pod a rank 0: state: 1 more such lines"]


def test_ranks_events_and_details_have_limits_of_their_own(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        journal.note("state", A, "x")
        journal.note("state", B, "x")
        journal.note("lost", A, "x")
        journal.note("refused", A, "x", detail="bad_seq")
        journal.note("refused", A, "x", detail="bad_frames")
    assert len(caplog.messages) == 5 * 2


def test_what_is_over_is_forgotten(journal: Journal, clock: Clock) -> None:
    for number in range(100):
        journal.note("registered", Rank(f"pod-{number}"), "model m")
    clock.now += 60.0
    journal.tell_left_out()
    assert journal._windows == {}


def test_the_last_warning_and_the_start_of_a_state_are_kept_until_the_pod_is_removed(
    journal: Journal, clock: Clock
) -> None:
    journal.note("registered", Rank("a"), "model m")
    assert (journal.problem(A), journal.state_since(A)) == (None, 1000.0)
    for second, (event, rank) in enumerate(
        [("lost", A), ("state", A), ("connected", A), ("resting", Rank("a")), ("refused", B)], 1
    ):
        clock.now = 1000.0 + second
        journal.note(event, rank, f"{event}\ntoo long")
    assert journal.problem(A) == Problem(event="lost", text="lost\\ntoo long", at_s=1001.0)
    assert journal.problem(Rank("a", 7)) == Problem(
        event="resting", text="resting\\ntoo long", at_s=1004.0
    )
    assert journal.state_since(A) == 1002.0
    for _ in range(9):
        clock.now += 1
        journal.note("lost", A, "again")
    latest = journal.problem(A)
    assert latest is not None
    assert latest.at_s == clock.now, "also of lines that are left out"
    journal.note("removed", Rank("a"), "it is followed no longer")
    assert (journal.problem(A), journal.state_since(A)) == (None, None)
    assert journal.problem(B) is not None


def test_strangers_leave_nothing_to_remember(journal: Journal) -> None:
    journal.note("stray", Rank(""), "a message", detail="unknown_topic")
    assert journal.problem(Rank("")) is None
