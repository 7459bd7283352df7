"""Pages of a browser, and everything that goes wrong in them."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, expect

MAIN = "from kvbraid.cli import main; main()"
PAGES = ("fleet", "requests", "explain", "ladder", "policy", "config")
GROUPS = {
    "groups": [
        {"kind": "full_attention", "block_size": 16},
        {"kind": "sliding_window", "block_size": 16, "window": 32},
    ]
}
POD = """
[[pods]]
id = "pod-{}"
model = "m{}"
[[pods.topology.groups]]
kind = "full_attention"
block_size = 16
"""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return the path of a browser that is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def demonstrating() -> Iterator[str]:
    """Run a demo whose traffic goes on, and return the address of its server."""
    command = [sys.executable, "-c", MAIN, "demo", "--serve", "--requests", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            yield next(found[1] for line in lines if (found := re.search(r"_URL=(\S+)", line)))
        finally:
            process.terminate()
            process.stdout.read()


class Opened:
    """Opens pages in contexts of their own, and keeps what a user would call broken."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._problems: list[str] = []
        self.may_fail = False  # While a server is gone, a browser says so in its console.

    def __call__(self, url: str, *, width: int = 1280, scheme: Any = "light") -> Page:  # noqa: ANN401
        context = self._browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        self._contexts.append(context)
        page, host = context.new_page(), urlsplit(url).netloc
        page.on("console", lambda m: self._note(m.type in {"error", "warning"}, m.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("dialog", lambda dialog: self._note(True, f"dialog {dialog.message}"))
        page.on(
            "request",
            lambda request: self._note(urlsplit(request.url).netloc != host, request.url),
        )
        page.goto(url)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        return page

    def _note(self, is_one: bool, what: str) -> None:
        if is_one and not self.may_fail:
            self._problems.append(what)

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def quiet_port() -> int:
    """Return a free port that the system gives to no connection as its own end.

    A page that asks a server which is gone could be given any other one, and connect to itself.
    """
    for port in Random().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports are in use")


def put(url: str, pod: str, **fields: object) -> None:
    """Register a pod without events."""
    body = {"model": "m", "topology": GROUPS, **fields}
    assert httpx.put(f"{url}/v1/pods/{pod}", json=body).is_success


def pick(url: str, name: str, model: str = "m", num_tokens: int = 64) -> None:
    """Choose a pod for a request."""
    body = {"model": model, "token_ids": list(range(num_tokens)), "request_id": name}
    answer = httpx.post(f"{url}/v1/pick", json=body)
    assert answer.is_success, answer.text


def end(url: str, name: str, cached_tokens: int = 0) -> None:
    """Report the end of a request."""
    body = {"pick": name, "event": "end", "cached_tokens": cached_tokens}
    assert httpx.post(f"{url}/v1/picked", json=body).is_success
