"""Servers as processes: `kvbraid serve` and `route`, and an index and feeds that are fakes."""

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
MAIN = "from kvbraid.cli import main; main()"
POD = """
[[pods]]
id = "{name}"
model = "m"
endpoint = "ipc://{folder}/none"
url = "{url}"
[[pods.topology.groups]]
kind = "full_attention"
block_size = 16
"""
ONE_POD = "[server]\nready_after_s = 0\n" + POD.replace("{name}", "a").replace("{url}", "{url}/")
_T = TypeVar("_T")


@contextmanager
def serving(
    *arguments: str, stderr: TextIO | None = None, name: str = "serve", main: str = MAIN
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", main, name, "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def until(ask: Callable[[], _T], wanted: Callable[[_T], bool], *, limit_s: float = 10) -> _T:
    """Ask again until the answer is the one wanted; the last answer once time is up."""
    end = time.monotonic() + limit_s
    answer = ask()
    while not wanted(answer) and time.monotonic() < end:
        time.sleep(0.02)
        answer = ask()
    return answer


@dataclass
class Server:
    process: subprocess.Popen[str]
    host: str
    port: int
    open: ExitStack

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        return self.open.enter_context(closing(connection))

    def end(self, number: signal.Signals) -> int:
        """Signal, and return the exit status; fail if the end waits for a call of 30 s."""
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@contextmanager
def running(
    explain_s: float = 0.0, *, patience_s: int = 60, stuck: tuple[str, str] | None = None
) -> Iterator[Server]:
    fake = ["fake_server", str(explain_s), "1", str(patience_s)]
    module = fake if stuck is None else ["stuck_server", *stuck]
    command = [sys.executable, "-m", f"tests.service.{module[0]}", *module[1:]]
    with (
        ExitStack() as connections,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            url = urlsplit(process.stdout.readline().strip())
            assert url.hostname is not None
            assert url.port is not None
            yield Server(process, url.hostname, url.port, connections)
        finally:
            process.kill()
