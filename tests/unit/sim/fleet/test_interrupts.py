"""Ctrl-C and SIGTERM: one KeyboardInterrupt, at a moment when nothing stays half done."""

import signal
import threading

import pytest
from kvbraid.sim.fleet.interrupts import handled_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_later_ones_do_not(number: signal.Signals) -> None:
    with handled_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)


def test_a_held_signal_interrupts_when_the_hold_ends() -> None:
    done: list[str] = []

    def start() -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("started")
        done.append("not reached")

    with handled_interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handled_interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_leaves_the_handlers_alone() -> None:
    seen = []

    def look() -> None:
        with handled_interrupts() as interrupts, interrupts.held():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
