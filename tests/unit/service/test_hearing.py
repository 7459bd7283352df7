"""Who is believed among replicas: floods, lies, messages that are late, names that are taken."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kvbraid.ids import PodId
from kvbraid.policy import RankLoad
from kvbraid.policy.replica_loads import MOST_REPLICAS
from kvbraid.service.shared.hearing import (
    KEPT_S,
    MOST_BYTES_PER_SECOND,
    MOST_PER_SECOND,
    MOST_PROCESSES,
    Hearing,
    ReplicaMessage,
)
from kvbraid.service.shared.messages import Speaker

LOADS = {(PodId("a"), 0): RankLoad(1, 10, 1, 10, 1000)}


class Ear:
    """A replica named `me` of the fleet `f`, and what it has taken."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.hearing = Hearing("kvbraid.f", "me", "my run", self._take)

    def _take(self, process: str, message: ReplicaMessage, now: float) -> bool:
        del message, now
        self.taken.append(process)
        return True

    def hear(self, name: str, payload: bytes, now: float) -> str:
        heard = self.hearing.hear(f"kvbraid.f.load.{name}", payload, now)
        self.hearing.check_integrity()
        return heard


def say(speaker: Speaker, at_s: float) -> bytes:
    return speaker.load(LOADS, at_s)


def test_clocks_may_be_apart_by_any_time() -> None:
    ear, early, late = Ear(), Speaker("early"), Speaker("late")
    for second in range(5):
        assert ear.hear("a", say(early, second), 1e6 + second) == "taken"
        assert ear.hear("b", say(late, 1e9 + second), 1e6 + second) == "taken"
    assert set(ear.taken) == {"a/early", "b/late"}


def test_what_comes_ten_minutes_late_is_refused_until_it_is_quick_again() -> None:
    ear, speaker = Ear(), Speaker("r")
    assert ear.hear("a", say(speaker, 0.0), 50.0) == "taken"
    assert ear.hear("a", say(speaker, 0.1), 650.1) == "late"
    assert ear.hear("a", say(speaker, 0.2), 650.2) == "late"
    assert ear.hear("a", say(speaker, 600.3), 650.3) == "taken"
    assert ear.hearing.counts["late"] == 2


def test_a_clock_that_drifts_is_no_late_one() -> None:
    ear, speaker = Ear(), Speaker("r")
    for minute in range(24 * 60):
        assert ear.hear("a", say(speaker, 60 * minute), 60.02 * minute) == "taken"


def test_a_message_counts_once_and_not_after_a_later_one() -> None:
    ear, speaker = Ear(), Speaker("r")
    first, second = say(speaker, 0.0), say(speaker, 0.1)
    assert ear.hear("a", second, 1.0) == "taken"
    assert ear.hear("a", first, 1.1) == ear.hear("a", second, 1.2) == "old"


def test_a_flood_is_cut_off_and_nobody_else_suffers() -> None:
    ear, flood, calm = Ear(), Speaker("f"), Speaker("c")
    heard = [ear.hear("flood", say(flood, 0.0), 0.5) for _ in range(MOST_PER_SECOND + 10)]
    assert heard.count("taken") == MOST_PER_SECOND
    assert heard[-10:] == ["too_fast"] * 10
    assert ear.hear("calm", say(calm, 0.0), 0.5) == "taken"
    assert ear.hear("flood", say(flood, 1.0), 1.5) == "taken"
    many = bytes(1 << 20)
    heard = [ear.hear("long", many, 0.5) for _ in range(MOST_BYTES_PER_SECOND // len(many) + 1)]
    assert heard == ["malformed"] * (len(heard) - 1) + ["too_fast"]


def test_two_processes_of_a_name_both_count_and_it_is_said() -> None:
    ear, one, two = Ear(), Speaker("1"), Speaker("2")
    assert ear.hear("a", say(one, 0.0), 0.0) == ear.hear("a", say(two, 0.0), 0.1) == "taken"
    assert ear.hearing.twice(0.2) == []  # It may have been started again.
    assert ear.hear("a", say(one, 0.3), 0.3) == "taken"
    assert ear.hearing.twice(0.4) == ["a"]
    assert ear.hearing.twice(0.3 + KEPT_S) == []
    assert ear.hear("me", say(two, 70.0), 70.1) == "taken"
    assert ear.hearing.twice(70.2) == ["me"]
    assert ear.hear("me", say(Speaker("my run"), 70.0), 70.3) == "echo"


def test_a_replica_may_be_started_again_and_again_but_not_all_at_once() -> None:
    ear = Ear()
    for number in range(10):
        assert ear.hear("a", say(Speaker(f"{number}"), 0.0), 2.0 * number) == "taken"
    heard = [ear.hear("b", say(Speaker(f"{n}"), 0.0), 0.0) for n in range(MOST_PROCESSES + 1)]
    assert heard == ["taken"] * MOST_PROCESSES + ["too_many"]


def test_of_many_names_so_many_count_and_others_do_when_these_are_silent() -> None:
    ear = Ear()
    for number in range(MOST_REPLICAS):
        assert ear.hear(f"{number}", say(Speaker("r"), 0.0), 0.0) == "taken"
    assert ear.hear("more", say(Speaker("r"), 0.0), 1.0) == "too_many"
    assert ear.hear("more", say(Speaker("r"), 0.0), KEPT_S) == "taken"


def test_subjects_of_others_are_foreign() -> None:
    ear, payload = Ear(), say(Speaker("r"), 0.0)
    for subject in (
        "orders.new.a", "kvbraid.f.load.", "kvbraid.g.load.a", "kvbraid.f.other.a",
        "kvbraid.f.load",
        "kvbraid.f.load.a.b", "", f"kvbraid.f.load.{'a' * 64}",
    ):  # fmt: skip
        assert ear.hearing.hear(subject, payload, 0.0) == "foreign"
    assert ear.hear("a", b"hello", 0.0) == "malformed"
    assert ear.taken == []


class Lives(RuleBasedStateMachine):
    """Anybody says anything at any time; what was taken is newer than all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.ear, self.now, self.total = Ear(), 0.0, 0
        self.speakers: dict[str, Speaker] = {}
        self.kept: list[tuple[str, bytes]] = []

    @rule(
        name=st.integers(0, MOST_REPLICAS + 2).map(str) | st.just("me"),
        run=st.sampled_from(["1", "2", "3", "4", "5", "my run"]),
        late=st.floats(0, 700),
    )
    def say(self, name: str, run: str, late: float) -> None:
        speaker = self.speakers.setdefault(name + run, Speaker(run))
        payload = say(speaker, max(self.now + 1000 - late, 0.0))
        self.kept.append((name, payload))
        self.hear(name, payload)

    @rule(number=st.integers(0, 100))
    def repeat(self, number: int) -> None:
        if self.kept:
            before = len(self.ear.taken)
            self.hear(*self.kept[number % len(self.kept)])
            assert number < len(self.kept) or len(self.ear.taken) <= before + 1

    @rule(payload=st.binary(max_size=50), name=st.text(max_size=5))
    def hear(self, name: str, payload: bytes) -> None:
        self.ear.hear(name, payload, self.now)
        self.total += 1

    @rule(gap=st.floats(0, 100))
    def wait(self, gap: float) -> None:
        self.now += gap

    @invariant()
    def every_message_is_counted_once(self) -> None:
        counts = self.ear.hearing.counts
        assert sum(counts.values()) == self.total
        assert counts["taken"] == len(self.ear.taken)
        self.ear.hearing.check_integrity()


TestLives = Lives.TestCase
