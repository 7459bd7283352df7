"""Each rule of sequence tracking, one by one."""

import pytest
from kvbraid.events.digest import digests_under
from kvbraid.events.held import HeldBatches
from kvbraid.events.sequence import (
    TABLE,
    AskReplay,
    Deliver,
    Effect,
    Lose,
    Phase,
    Reset,
    SequenceTracker,
    SetState,
)
from kvbraid.ids import PodState

TWO_HELD = 2 * HeldBatches.cost(b"a0")


def payload(seq: int, life: str = "a") -> bytes:
    return f"{life}{seq}".encode()


def feed(tracker: SequenceTracker, *seqs: int, life: str = "a") -> list[Effect]:
    out: list[Effect] = []
    for seq in seqs:
        out += tracker.message(seq, payload(seq, life))
        tracker.check_integrity()
    return out


def replay(tracker: SequenceTracker, *seqs: int, life: str = "a") -> list[Effect]:
    out: list[Effect] = []
    for seq in seqs:
        out += tracker.replayed(seq, payload(seq, life))
        tracker.check_integrity()
    out += tracker.replay_ended()
    tracker.check_integrity()
    return out


def state(tracker: SequenceTracker) -> PodState:
    return tracker.state


def delivered(out: list[Effect]) -> list[int]:
    return [item.seq for item in out if isinstance(item, Deliver)]


def kinds(out: list[Effect]) -> list[str]:
    return [type(item).__name__ for item in out]


def live_at(last: int, *, remembered: int = 1024) -> SequenceTracker:
    """An exact tracker that has delivered 0 to `last`."""
    tracker = SequenceTracker(remembered=remembered)
    tracker.connected()
    replay(tracker, *range(last + 1))
    assert state(tracker) is PodState.EXACT
    return tracker


def test_the_table_has_a_row_for_every_phase() -> None:
    assert set(TABLE) == set(Phase)


def test_the_first_connection_asks_for_everything() -> None:
    tracker = SequenceTracker()
    assert state(tracker) is PodState.STALE
    assert tracker.connected() == [
        AskReplay(0),
        SetState(PodState.REBUILDING, "replay from 0 is under way"),
    ]


def test_an_engine_that_has_sent_nothing_is_exact() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    assert tracker.replay_ended() == [SetState(PodState.EXACT, "")]


def test_live_batches_wait_for_the_replay_and_follow_it_once() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    assert delivered(feed(tracker, 2, 3, 4)) == []
    out = replay(tracker, 0, 1, 2)
    assert delivered(out) == [0, 1, 2, 3, 4]
    assert out[-1] == SetState(PodState.EXACT, "")
    assert tracker.counts.duplicates == 1


def test_replay_answers_out_of_order_are_put_in_order() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    assert delivered(replay(tracker, 3, 1, 0, 2)) == [0, 1, 2, 3]
    assert state(tracker) is PodState.EXACT


def test_without_replay_a_first_batch_0_is_exact() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    assert tracker.replay_failed() == [
        SetState(PodState.DEGRADED, "history before the connection is unknown")
    ]
    assert feed(tracker, 0) == [Deliver(0, b"a0"), SetState(PodState.EXACT, "")]


def test_without_replay_a_later_first_batch_is_a_late_start() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    tracker.replay_failed()
    assert AskReplay(0) in feed(tracker, 7)
    out = tracker.replay_failed()
    assert out[:2] == [Lose(0, 6), Deliver(7, b"a7")]
    assert state(tracker) is PodState.DEGRADED
    assert delivered(feed(tracker, 8)) == [8]
    assert state(tracker) is PodState.DEGRADED


def test_a_run_of_consecutive_batches_is_settled_as_one_by_one() -> None:
    tracker, other = live_at(1), live_at(1)
    assert tracker.advance(2, [payload(2), payload(3), payload(4)])
    feed(other, 2, 3, 4)
    tracker.check_integrity()
    for each in (tracker, other):
        assert each.last == 4
        assert feed(each, 3) == []
        assert each.counts.duplicates == 1
        assert kinds(feed(each, 3, life="b"))[0] == "Reset"


def test_a_run_that_is_not_next_or_comes_while_something_is_in_doubt_changes_nothing() -> None:
    tracker = live_at(1)
    for first in (0, 1, 3):
        assert not tracker.advance(first, [payload(first), payload(first + 1)])
    feed(tracker, 4)
    assert state(tracker) is PodState.REBUILDING
    assert not tracker.advance(2, [payload(2)])
    assert tracker.last == 1
    assert not SequenceTracker().advance(0, [payload(0)])
    tracker.check_integrity()


def test_a_gap_asks_from_the_first_missing_number_and_proves_the_engine() -> None:
    tracker = live_at(3)
    assert feed(tracker, 6)[0] == AskReplay(4)
    assert state(tracker) is PodState.REBUILDING
    out = replay(tracker, 4, 5, 6)
    assert delivered(out) == [4, 5, 6]
    assert out[-2] == AskReplay(3)
    assert state(tracker) is PodState.REBUILDING
    assert delivered(replay(tracker, 3, 4, 5, 6)) == []
    assert state(tracker) is PodState.EXACT


def test_a_gap_that_replay_does_not_fill_is_lost() -> None:
    tracker = live_at(3)
    feed(tracker, 6)
    out = replay(tracker, 6)
    assert out[:2] == [Lose(4, 5), Deliver(6, b"a6")]
    assert tracker.reason == "batches 4 to 5 are lost"
    assert state(tracker) is PodState.DEGRADED
    assert tracker.counts.lost == 2


def test_batches_between_the_end_of_replay_and_the_first_live_one_are_asked_for() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    feed(tracker, 5)
    assert replay(tracker, 0, 1, 2)[3] == AskReplay(3)
    assert delivered(replay(tracker, 3, 4, 5)) == [3, 4, 5]
    assert state(tracker) is PodState.EXACT


def test_a_replay_buffer_shorter_than_history_loses_its_beginning() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    out = replay(tracker, 4, 5)
    assert out[:3] == [Lose(0, 3), Deliver(4, b"a4"), Deliver(5, b"a5")]
    assert state(tracker) is PodState.DEGRADED


def test_a_clear_after_the_loss_makes_it_exact_again_and_one_before_does_not() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    replay(tracker, 4, 5)
    assert tracker.cleared(3) == []
    assert tracker.cleared(5) == [SetState(PodState.EXACT, "")]


def test_the_same_payload_again_is_a_duplicate_even_number_0() -> None:
    tracker = live_at(5)
    assert feed(tracker, 5, 3, 0) == []
    assert tracker.counts.duplicates == 3


def test_another_payload_for_a_used_number_is_a_restart() -> None:
    tracker = live_at(5)
    out = feed(tracker, 0, life="b")
    assert out[:2] == [Reset(), AskReplay(0)]
    assert state(tracker) is PodState.REBUILDING
    assert delivered(replay(tracker, 0, life="b")) == [0]
    assert state(tracker) is PodState.EXACT
    assert tracker.counts.restarts == 1


def test_a_restart_heard_late_without_replay_loses_the_beginning() -> None:
    tracker = live_at(5)
    feed(tracker, 2, life="b")
    assert tracker.replay_failed()[:2] == [Lose(0, 1), Deliver(2, b"b2")]
    assert state(tracker) is PodState.DEGRADED


def test_a_number_no_longer_remembered_counts_as_a_restart() -> None:
    tracker = live_at(9, remembered=4)
    assert kinds(feed(tracker, 9)) == []
    assert kinds(feed(tracker, 1))[0] == "Reset"


def test_live_batches_far_behind_the_replay_are_an_overlap_and_no_restart() -> None:
    tracker = live_at(9, remembered=2)
    assert feed(tracker, *range(10)) == []
    assert tracker.counts.duplicates == 10


def test_a_reconnection_asks_from_last_plus_1_then_for_the_last_as_proof() -> None:
    tracker = live_at(4)
    assert tracker.disconnected() == [SetState(PodState.STALE, "not connected")]
    assert tracker.connected()[0] == AskReplay(5)
    assert replay(tracker, 5)[1] == AskReplay(4)
    assert replay(tracker, 4, 5) == [SetState(PodState.EXACT, "")]


def test_a_reconnected_engine_that_does_not_know_the_last_batch_is_another_life() -> None:
    tracker = live_at(4)
    tracker.disconnected()
    tracker.connected()
    replay(tracker)
    assert replay(tracker)[:2] == [Reset(), AskReplay(0)]
    assert delivered(replay(tracker, 0, 1, life="b")) == [0, 1]
    assert state(tracker) is PodState.EXACT


@pytest.mark.parametrize("remembered", [1, 1024])
def test_another_life_that_is_already_longer_is_told_by_the_payload(remembered: int) -> None:
    tracker = live_at(1, remembered=remembered)
    tracker.disconnected()
    tracker.connected()
    assert delivered(replay(tracker, 2, 3, life="b")) == [2, 3]
    assert state(tracker) is PodState.REBUILDING
    assert tracker.replayed(1, payload(1, "b"))[:2] == [Reset(), AskReplay(0)]
    assert delivered(replay(tracker, 0, 1, 2, 3, life="b")) == [0, 1, 2, 3]
    assert state(tracker) is PodState.EXACT


def test_a_reconnection_without_replay_cannot_be_exact_until_a_restart_or_clear() -> None:
    tracker = live_at(4)
    tracker.disconnected()
    tracker.connected()
    assert tracker.replay_failed()[0] == Lose(5, None)
    assert state(tracker) is PodState.DEGRADED
    assert delivered(feed(tracker, 5)) == [5]
    assert tracker.cleared(5) == [SetState(PodState.EXACT, "")]


def test_a_disconnection_during_replay_keeps_the_doubt() -> None:
    tracker = live_at(1)
    tracker.disconnected()
    tracker.connected()
    tracker.replayed(2, payload(2, "b"))
    tracker.disconnected()
    assert tracker.connected()[0] == AskReplay(3)
    assert replay(tracker)[0] == AskReplay(1)
    assert kinds(replay(tracker, 1, 2, life="b"))[0] == "Reset"


def test_a_batch_proves_that_there_is_a_connection() -> None:
    tracker = live_at(1)
    tracker.disconnected()
    assert feed(tracker, 2)[0] == AskReplay(2)
    assert tracker.connected() == []
    assert delivered(replay(tracker, 2)) == [2]
    replay(tracker, 1, 2)
    assert state(tracker) is PodState.EXACT


def test_batches_held_when_the_connection_breaks_are_forgotten() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    feed(tracker, 0, 1)
    tracker.disconnected()
    tracker.check_integrity()
    tracker.connected()
    assert delivered(replay(tracker, 0, life="b")) == [0]
    assert state(tracker) is PodState.EXACT


def test_a_poll_of_a_silent_engine_changes_no_state_when_nothing_is_missing() -> None:
    tracker = live_at(2)
    assert tracker.silence() == [AskReplay(3)]
    assert feed(tracker, 3) == [Deliver(3, b"a3")]
    assert tracker.silence() == []
    assert replay(tracker) == []
    assert state(tracker) is PodState.EXACT


def test_a_poll_finds_a_lost_last_batch() -> None:
    tracker = live_at(2)
    tracker.silence()
    assert delivered(replay(tracker, 3)) == [3]
    assert replay(tracker, 2, 3) == [SetState(PodState.EXACT, "")]


def test_a_gap_during_a_poll_asks_anew() -> None:
    tracker = live_at(2)
    tracker.silence()
    assert feed(tracker, 5)[0] == AskReplay(3)


def test_a_failed_poll_changes_nothing() -> None:
    tracker = live_at(2)
    tracker.silence()
    assert tracker.replay_failed() == []
    assert state(tracker) is PodState.EXACT


def test_a_replay_that_breaks_off_is_continued_where_it_stopped() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    tracker.replayed(0, payload(0))
    assert tracker.replay_failed()[0] == AskReplay(1)


def test_answers_of_a_replay_given_up_are_ignored() -> None:
    tracker = live_at(1)
    assert replay(tracker, 2) == []
    assert tracker.replay_failed() == []
    tracker.disconnected()
    assert replay(tracker, 2) == []
    assert tracker.silence() == []


def test_what_the_hold_buffer_cannot_take_is_asked_for_again() -> None:
    tracker = SequenceTracker(hold_limit_bytes=TWO_HELD)
    tracker.connected()
    feed(tracker, 1, 2, 3, 4)
    assert tracker.counts.overflowed == 2
    out = replay(tracker, 0)
    assert delivered(out) == [0, 1, 2]
    assert AskReplay(3) in out
    assert delivered(replay(tracker, 3, 4)) == [3, 4]
    assert state(tracker) is PodState.EXACT


def test_a_replay_with_a_hole_holds_no_more_than_the_limit() -> None:
    tracker = SequenceTracker(hold_limit_bytes=TWO_HELD)
    tracker.connected()
    out = tracker.replayed(5, payload(5)) + tracker.replayed(6, payload(6))
    assert out == []
    assert tracker.replayed(7, payload(7))[0] == Lose(0, 4)
    assert tracker.last == 7


def test_a_held_batch_is_known_by_its_bytes_even_when_its_digest_is_forgotten() -> None:
    tracker = SequenceTracker(remembered=2)
    tracker.connected()
    feed(tracker, 2, 3, 4, 5)
    assert delivered(replay(tracker, 2, 0, 1)) == [0, 1, 2, 3, 4, 5]
    assert state(tracker) is PodState.EXACT
    assert tracker.counts.duplicates == 1


def test_a_live_batch_that_contradicts_a_held_answer_is_a_restart() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    tracker.replayed(3, payload(3))
    assert kinds(feed(tracker, 3, life="b"))[0] == "Reset"


def test_a_feed_that_failed_forgets_and_asks_for_all_it_had_heard_of() -> None:
    tracker = live_at(2)
    assert tracker.failed("broken") == [Reset(), SetState(PodState.STALE, "broken")]
    tracker.check_integrity()
    assert tracker.connected()[0] == AskReplay(0)
    assert delivered(replay(tracker, 0, 1, 2)) == [0, 1, 2]
    assert state(tracker) is PodState.EXACT


def test_a_feed_that_failed_is_not_exact_when_the_replay_brings_nothing_back() -> None:
    tracker = live_at(2)
    tracker.failed("broken")
    tracker.connected()
    assert AskReplay(0) in replay(tracker), "asked once more, now with the hole known"
    assert Lose(0, 2) in replay(tracker)
    assert state(tracker) is PodState.DEGRADED


def test_a_failure_while_a_replay_is_under_way_leaves_nothing_held() -> None:
    tracker = live_at(0)
    feed(tracker, 2, 3)
    tracker.failed("broken")
    tracker.check_integrity()
    tracker.disconnected()
    assert tracker.reason == "broken"


def test_who_goes_on_asks_for_what_came_since_and_then_for_the_proof() -> None:
    settled = live_at(4).progress()
    assert settled is not None
    tracker = SequenceTracker()
    tracker.go_on(settled)
    assert state(tracker) is PodState.STALE
    assert tracker.connected()[0] == AskReplay(5)
    assert kinds(tracker.replayed(5, payload(5))) == ["Deliver"]
    assert AskReplay(4) in tracker.replay_ended()
    tracker.replayed(4, payload(4))
    tracker.replay_ended()
    assert state(tracker) is PodState.EXACT


def test_who_goes_on_after_another_engine_s_batch_begins_anew() -> None:
    settled = live_at(4).progress()
    assert settled is not None
    tracker = SequenceTracker()
    tracker.go_on(settled)
    tracker.connected()
    tracker.replay_ended()
    assert kinds(tracker.replayed(4, b"of another life")) == ["Reset", "AskReplay", "SetState"]


def test_nothing_is_settled_while_the_engine_may_be_another_one() -> None:
    tracker = live_at(4)
    tracker.disconnected()
    assert tracker.progress() is not None
    tracker.connected()
    assert tracker.progress() is None


def test_digests_under_one_secret_are_the_same_in_another_process() -> None:
    one, same, other = (digests_under(bytes([number]) * 32) for number in (1, 1, 2))
    assert one.of(b"batch") == same.of(b"batch") != other.of(b"batch")
    assert one.of_each([b"batch"]) == [one.of(b"batch")]


def test_a_restart_that_the_caller_knows_of_forgets_and_asks_from_the_beginning() -> None:
    tracker = live_at(3)
    assert kinds(tracker.restarted()) == ["Reset", "AskReplay", "SetState"]
    assert delivered(replay(tracker, 0, 1, life="b")) == [0, 1]
    assert state(tracker) is PodState.EXACT


def test_a_copy_that_ends_leaves_an_exact_rank_that_polls_the_engine() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    for seq in range(3):
        tracker.replayed(seq, payload(seq))
    assert AskReplay(3) in tracker.ran_out()
    assert state(tracker) is PodState.EXACT
    tracker.replay_failed()
    assert state(tracker) is PodState.EXACT


def test_a_copy_that_ends_before_the_engine_asks_it_for_a_batch_that_both_know() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    tracker.replayed(0, payload(0))
    tracker.ran_out()
    assert AskReplay(0) in replay(tracker, 1, 2)
    replay(tracker, 0, life="b")
    assert tracker.counts.restarts == 1


def test_a_copy_with_a_hole_asks_the_engine_which_must_know_what_comes_after_it() -> None:
    tracker = SequenceTracker()
    tracker.connected()
    for seq in (2, 3):
        tracker.replayed(seq, payload(seq))
    assert AskReplay(0) in tracker.ran_out()
    assert AskReplay(2) in replay(tracker, 0, 1, life="b")
    assert "Reset" in kinds(tracker.replay_ended())
    tracker = SequenceTracker()
    tracker.connected()
    tracker.replayed(2, payload(2))
    tracker.ran_out()
    assert delivered(replay(tracker, 0, 1, 2)) == [0, 1, 2]
    assert state(tracker) is PodState.EXACT


def test_a_strict_tracker_delivers_nothing_before_the_engine_is_known_to_be_the_same() -> None:
    tracker = live_at(2)
    tracker.is_strict = True
    tracker.disconnected()
    assert AskReplay(2) in tracker.connected()
    assert delivered(replay(tracker, 2, 3)) == [3]
    tracker.disconnected()
    tracker.connected()
    assert delivered(tracker.replayed(4, payload(4, "b"))) == []
    assert tracker.counts.restarts == 1


def test_a_strict_tracker_asks_again_if_a_poll_brings_news() -> None:
    tracker = live_at(2)
    tracker.is_strict = True
    tracker.silence()
    assert kinds(tracker.replayed(3, payload(3))) == ["AskReplay", "SetState"]
    assert delivered(replay(tracker, 2, 3)) == [3]
    assert state(tracker) is PodState.EXACT
