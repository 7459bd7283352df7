"""What does a page cost: the server that tells it of changes, and the browser that draws them?

A server has 500 pods, and 200 requests a second are picked, begin and end. The CPU of this traffic
is measured before and with a page; the difference is the page's. `KVBRAID_BENCH_PODS` and
`KVBRAID_BENCH_SECONDS` make it smaller for a quick look.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process

if TYPE_CHECKING:
    from playwright.sync_api import Page

NUM_PODS = int(os.environ.get("KVBRAID_BENCH_PODS", "500"))
SECONDS = float(os.environ.get("KVBRAID_BENCH_SECONDS", "10"))
REQUESTS_PER_S = 200
NUM_CONNECTIONS = 4
MAIN = "from kvbraid.cli import main; main()"
QUIET = '[server]\nlog_level = "warning"\n'
POD = """
[[pods]]
id = "pod-{}"
model = "model"
[[pods.topology.groups]]
kind = "full_attention"
block_size = 16
"""
LONG_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""
BROWSER = shutil.which("chromium")


class Running:
    """A server of many pods, and the traffic to it."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self._over = threading.Event()
        self._sent = [0] * NUM_CONNECTIONS
        self._threads = [
            threading.Thread(target=self._ask, args=(at,)) for at in range(NUM_CONNECTIONS)
        ]

    def connection(self) -> HTTPConnection:
        """Return a connection that is kept."""
        at = urlsplit(self.url)
        assert at.hostname is not None
        return HTTPConnection(at.hostname, at.port or 80, timeout=60)

    def _ask(self, at: int) -> None:
        """Send every NUM_CONNECTIONS-th request when its time has come."""
        connection, begin = self.connection(), time.monotonic()
        while not self._over.is_set():
            number = self._sent[at] * NUM_CONNECTIONS + at
            name = f"r{number}"
            token_ids = [*range(64), number]
            body = {"model": "model", "token_ids": token_ids, "request_id": name}
            post(connection, "/v1/pick", body)
            for event in ("first_token", "end"):
                post(connection, "/v1/picked", {"pick": name, "event": event})
            self._sent[at] += 1
            self._over.wait(max(0.0, begin + number / REQUESTS_PER_S - time.monotonic()))

    def __enter__(self) -> "Running":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def cores(self) -> float:
        """Return the CPU seconds a second of the server; half of the requests must be in time."""
        begin, num, cpu = time.monotonic(), sum(self._sent), cpu_us_of_process(self.pid)
        time.sleep(SECONDS)
        took, sent = time.monotonic() - begin, sum(self._sent) - num
        assert sent > REQUESTS_PER_S * took / 2, f"{sent} requests in {took:.0f} s: too few"
        return (cpu_us_of_process(self.pid) - cpu) / 1e6 / took


def post(connection: HTTPConnection, path: str, body: Mapping[str, object]) -> None:
    """Send a body, and read the answer."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


@contextlib.contextmanager
def running() -> Iterator[Running]:
    """Start a server, and traffic to it."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "fleet.toml")
        config.write_text(QUIET + "".join(map(POD.format, range(NUM_PODS))))
        command = [sys.executable, "-c", MAIN, "serve", "--port", "0", "--config", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                url = process.stdout.readline().split()[-1]
                with Running(url, process.pid) as server:
                    yield server
            finally:
                process.kill()


@contextlib.contextmanager
def listening(server: Running, topics: str) -> Iterator[None]:
    """Read a stream as a page does, and throw it away."""
    connection = server.connection()
    connection.request("GET", f"/v1/events?topics={topics}")
    answer = connection.getresponse()

    def read() -> None:
        with contextlib.suppress(OSError, HTTPException):  # It was shut.
            while answer.read1(1 << 16):
                pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        assert connection.sock is not None
        connection.sock.shutdown(2)
        thread.join()
        connection.close()


def of_server(topics: str) -> Side:
    """Cores that the server takes more with a page than without."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with running() as server:
            time.sleep(2)

            def sample() -> float:
                alone = server.cores()
                with listening(server, topics):
                    return max(0.0, server.cores() - alone)

            yield sample

    return side


def longest(page: "Page") -> float:
    """Return the longest task in milliseconds since the page was drawn first; 0: none was long."""
    page.wait_for_timeout(2_000)
    page.evaluate("window.longest = 0")
    page.wait_for_timeout(1e3 * SECONDS)
    return float(page.evaluate("window.longest"))


def main_thread(page: "Page") -> float:
    """Return the CPU seconds a second of the page's own thread."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "ThreadTime")

    page.wait_for_timeout(2_000)
    begin, before = time.monotonic(), used()
    page.wait_for_timeout(1e3 * SECONDS)
    return (used() - before) / (time.monotonic() - begin)


def of_page(path: str, figure: Callable[["Page"], float]) -> Side:
    """A figure of a page that is opened for each sample."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        from playwright.sync_api import sync_playwright

        with running() as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])

            def sample() -> float:
                page = browser.new_page()
                page.add_init_script(LONG_TASKS)
                page.goto(f"{server.url}/{path}")
                page.wait_for_selector("tbody tr")
                found = figure(page)
                page.close()
                return found

            yield sample

    return side


CROWD = f"{NUM_PODS} pods, {REQUESTS_PER_S} requests/s"
LACKS = "" if BROWSER and importlib.util.find_spec("playwright") else "chromium: apt install it"

ROWS = (
    *(
        Row(
            name=f"console_idle_{page}",
            question=f"{CROWD}, the page {page} is open: the server",
            unit="cores more than without",
            ours=of_server(topics),
            target=Target(ours=0.05),
            samples=3,
        )
        for page, topics in (("fleet", "pods"), ("requests", "requests"), ("ladder", "ladder"))
    ),
    *(
        Row(
            name=f"console_{name}_{page}",
            question=f"{CROWD}, the page {page}: {what}",
            unit=unit,
            ours=of_page(page, figure),
            target=Target(ours=most),
            samples=3,
            lacks=LACKS,
        )
        for page in ("fleet", "requests", "ladder")
        for name, what, unit, figure, most in (
            ("task", "its longest task once it is drawn", "ms, 0 below 50", longest, 50),
            ("thread", "its main thread", "cores", main_thread, 0.1),
        )
    ),
)
