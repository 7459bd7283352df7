"""What ranks were sent: waits by hand, and the sums after every step of random lives."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kvbraid.ids import PodId
from kvbraid.policy.bookings import Booking, Bookings

A, B = (PodId("a"), 0), (PodId("b"), 1)


def booking(at: float = 0.0, *, seconds: float = 1.0, priority: int = 0) -> Booking:
    return Booking(rank=A, seconds=seconds, tokens=10, computes=4, at=at, priority=priority)


def wait(bookings: Bookings, now: float, priority: int = 0, rank: tuple[PodId, int] = A) -> float:
    return bookings.loads([rank], now, priority).wait[0]


def load(bookings: Bookings) -> tuple[int, ...]:
    """Return requests in flight at A, their tokens, how many wait, and what those compute."""
    columns = bookings.loads([A], 0.0)
    assert bookings.running(A) == columns.running[0]
    return tuple(column[0] for column in columns[1:])


def test_a_wait_is_what_was_booked_less_what_has_passed() -> None:
    bookings = Bookings()
    assert wait(bookings, 0.0) == 0.0
    bookings.add("first", booking())
    bookings.add("second", booking(0.5))
    assert wait(bookings, 0.5) == 1.5
    assert wait(bookings, 9.0) == 1.0  # The first is late; the second still has to come.
    assert load(bookings) == (2, 20, 2, 8)
    bookings.start("first", 9.0)
    assert wait(bookings, 9.25) == 0.75
    assert load(bookings) == (2, 20, 1, 4)
    bookings.end("first", 9.5)
    bookings.end("second", 9.5)
    assert wait(bookings, 9.5) == 0.0
    assert load(bookings) == (0, 0, 0, 0)
    assert not bookings


def test_a_late_first_token_is_seen() -> None:
    bookings = Bookings()
    bookings.add("first", booking())
    assert bookings.stuck(31.0, 30.0) == set()
    assert bookings.stuck(31.1, 30.0) == {A}
    bookings.start("first", 31.2)
    assert bookings.stuck(99.0, 30.0) == set()


def test_the_more_urgent_does_not_wait_for_the_others() -> None:
    bookings = Bookings()
    bookings.add("batch", booking(priority=5))
    assert wait(bookings, 0.25, 5) == 0.75
    assert wait(bookings, 0.25, 0) == 0.0
    bookings.add("urgent", booking(priority=0, seconds=0.5))
    assert wait(bookings, 0.25, 0) == 0.5
    assert wait(bookings, 0.25, 5) == 1.25
    bookings.start("batch", 1.0)
    bookings.add("later", booking(priority=5))
    assert wait(bookings, 1.0, 0) == 0.5
    assert wait(bookings, 1.0, 5) == 1.5


def test_without_reports_a_first_token_comes_when_it_was_expected() -> None:
    bookings = Bookings()
    for number in range(3):
        bookings.add(str(number), booking())
    bookings.start_predicted(1.5)
    assert (wait(bookings, 1.5), load(bookings)) == (1.5, (3, 30, 2, 8))
    bookings.start_predicted(3.0)
    assert load(bookings) == (3, 30, 0, 0)
    bookings.check_integrity()


def test_a_clock_that_goes_back_lets_nothing_pass() -> None:
    bookings = Bookings()
    bookings.add("first", booking(100.0))
    assert wait(bookings, 50.0) == 1.0
    bookings.start("first", 40.0)
    assert wait(bookings, 40.0) == 0.0


class Lives(RuleBasedStateMachine):
    """Requests come, start and end in any order, also twice, and unknown ones."""

    def __init__(self) -> None:
        super().__init__()
        self.bookings, self.now, self.count = Bookings(), 0.0, 0

    @rule(
        rank=st.sampled_from((A, B)),
        seconds=st.floats(0.001, 100),
        priority=st.integers(0, 2),
        gap=st.floats(-1, 10),
    )
    def add(self, rank: tuple[PodId, int], seconds: float, priority: int, gap: float) -> None:
        self.now, self.count = self.now + gap, self.count + 1
        computes = self.count % 7
        self.bookings.add(
            str(self.count),
            Booking(
                rank=rank, seconds=seconds, tokens=9, computes=computes, at=self.now,
                priority=priority,
            ),
        )  # fmt: skip

    @rule(number=st.integers(1, 30), gap=st.floats(-1, 10))
    def start(self, number: int, gap: float) -> None:
        self.now += gap
        known = str(number) in self.bookings
        assert (self.bookings.start(str(number), self.now) is not None) == known

    @rule(number=st.integers(1, 30))
    def end(self, number: int) -> None:
        known = str(number) in self.bookings
        assert (self.bookings.end(str(number), self.now) is not None) == known
        assert self.bookings.end(str(number), self.now) is None

    @rule()
    def predict(self) -> None:
        self.bookings.start_predicted(self.now)

    @invariant()
    def agrees(self) -> None:
        self.bookings.check_integrity()
        for rank in (A, B):
            waits = [wait(self.bookings, self.now, priority, rank) for priority in range(3)]
            assert 0 <= waits[0] <= waits[1] + 1e-6 <= waits[2] + 2e-6
            waiting = [b for _, b in self.bookings if b.rank == rank and not b.started]
            assert waits[2] <= sum(b.seconds for b in waiting) + 1e-6


TestLives = Lives.TestCase
