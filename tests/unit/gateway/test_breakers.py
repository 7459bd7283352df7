"""Pods that fail: when they are left alone, and when no more."""

from kvbraid.gateway.breakers import Breakers
from kvbraid.ids import PodId

A, B = PodId("a"), PodId("b")


def test_a_pod_rests_after_so_many_failures_in_a_row() -> None:
    breakers = Breakers(failures=3, rest_s=10)
    assert [breakers.fail(A, 0.0) for _ in range(2)] == [False, False]
    breakers.succeed(A)
    assert [breakers.fail(A, 0.0) for _ in range(3)] == [False, False, True]
    assert breakers.resting == {A}


def test_a_rest_ends_once_and_begins_again_with_one_failure() -> None:
    breakers = Breakers(failures=3, rest_s=10)
    assert [breakers.fail(A, 5.0) for _ in range(3)][-1]
    assert breakers.rested(14.9) == []
    assert breakers.rested(15.0) == [A]
    assert breakers.rested(15.0) == []
    assert breakers.fail(A, 16.0)
    assert breakers.rested(26.0) == [A]
    breakers.succeed(A)
    assert not breakers.fail(A, 27.0)


def test_what_comes_from_before_a_rest_changes_nothing() -> None:
    breakers = Breakers(failures=1, rest_s=10)
    assert breakers.fail(A, 0.0)
    assert not breakers.fail(A, 9.0)  # The rest is not longer for it.
    breakers.succeed(A)
    assert breakers.resting == {A}
    assert breakers.rested(10.0) == [A]


def test_pods_that_are_gone_are_forgotten() -> None:
    breakers = Breakers(failures=1, rest_s=10)
    assert breakers.fail(A, 0.0)
    assert breakers.fail(B, 0.0)
    breakers.retain({B})
    assert breakers.resting == {B}
    assert breakers.fail(A, 1.0)
