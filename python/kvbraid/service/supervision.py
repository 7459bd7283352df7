"""What a supervisor hears of a server: that it is ready, that its loop still runs, that it ends.

systemd names a datagram socket in NOTIFY_SOCKET, and in WATCHDOG_USEC after how long without a
word it starts the server anew (sd_notify(3)). Without these variables nothing is sent. Words are
sent by the event loop alone and never wait: a loop that hangs is silent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

_WORDS_PER_LIMIT: Final = 3  # Two of them may come late.
_logger: Final = logging.getLogger(__name__)


class Supervisor:
    """Whoever has started this process and listens, or nobody."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An address that begins with @ is no file: its first byte is a zero.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # Of a process that is started with another's variables, nobody wants to hear.
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit_us = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        self._every_s = int(limit_us) / 1e6 / _WORDS_PER_LIMIT if limit_us.isdecimal() else 0.0
        self._next: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Say that requests are answered, and from now on that the loop runs."""
        self._say("READY=1")
        self._alive()

    def ending(self) -> None:
        """Say that no further requests are taken; those in flight may still take their time."""
        self._say("STOPPING=1")

    def close(self) -> None:
        """Say nothing any more."""
        if self._next is not None:
            self._next.cancel()

    def _alive(self) -> None:
        if self._every_s:
            self._say("WATCHDOG=1")
            self._next = asyncio.get_running_loop().call_later(self._every_s, self._alive)

    def _say(self, word: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as told:
                told.sendto(word.encode(), self._address)
        except OSError as error:
            _logger.warning("NOTIFY_SOCKET %r does not take %s: %s", self._address, word, error)
