"""`kvbraid serve` as a process of its own, and how a test waits for what it answers."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

MAIN = "from kvbraid.cli import main; main()"
_T = TypeVar("_T")


@contextmanager
def serving(
    *arguments: str, stderr: TextIO | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", MAIN, "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def until(ask: Callable[[], _T], wanted: Callable[[_T], bool]) -> _T:
    """Ask again until the answer is the one wanted; the last answer after ten seconds."""
    end = time.monotonic() + 10
    answer = ask()
    while not wanted(answer) and time.monotonic() < end:
        time.sleep(0.02)
        answer = ask()
    return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
