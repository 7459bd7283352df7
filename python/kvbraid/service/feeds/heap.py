"""Gives memory that was freed back to the system.

ZeroMQ keeps 64 bytes for each frame, however small, so what a hostile connection brought before it
was cut can be many times what it sent. The C library keeps such memory for later, where it counts
as the process's; nobody needs it soon.
"""

import contextlib
import ctypes
import sys
import threading
from typing import Final

_AFTER_S: Final = (1.0, 5.0)  # ZeroMQ frees what a connection brought on threads of its own.


def give_back_soon() -> None:
    """Give back what is free in a moment, and once more for what is freed late; do not wait."""
    for after_s in _AFTER_S:
        timer = threading.Timer(after_s, _give_back)
        timer.daemon = True
        timer.start()


def _give_back() -> None:
    # The C library of Alpine and of other systems keeps no such memory, and has no such function.
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
