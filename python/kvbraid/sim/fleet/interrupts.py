"""Ctrl-C and SIGTERM for a program that has processes to end.

Invariant: the first signal raises KeyboardInterrupt. While a process is being started this waits,
because the program could not yet end that process. Later signals are ignored, so they cannot
interrupt the ending.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The state of the handler; see `handled_interrupts`."""

    def __init__(self) -> None:
        self._is_pending = False
        self._is_held = False
        self._was_raised = False

    def receive(self, _number: int, _frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, now or when interrupts are no longer held back."""
        self._is_pending = True
        if not self._is_held:
            self._raise_once()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold an interrupt back until the context ends."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_pending:
            self._raise_once()

    def _raise_once(self) -> None:
        if not self._was_raised:
            self._was_raised = True
            raise KeyboardInterrupt


@contextmanager
def handled_interrupts() -> Iterator[Interrupts]:
    """Install the handler for the context; only a main thread receives signals."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts.receive) for number in _SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
