"""A browser, a demo with traffic, and pages that must neither fail nor ask another origin."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.pages import Opened, chromium, demonstrating
from tests.service.serving import serving, until

expect.set_options(timeout=60_000)  # Machines may be busy; only a failure waits so long.


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def demo() -> Iterator[str]:
    """The address of a demo whose traffic goes on, and has shown a request of two ranks whole."""
    with demonstrating() as url:
        assert until(lambda: has_shown_one(url), bool, limit_s=120)
        yield url


def has_shown_one(url: str) -> bool:
    rows = httpx.get(f"{url}/v1/requests").json()["requests"]
    return any(row["ladder"] and row["runner_up"] for row in rows)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server without pods, which keeps prompts."""
    config = tmp_path / "fleet.toml"
    config.write_text("[console]\nprompts = true\n")
    with serving("--config", str(config)) as (_, url):
        yield url


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens pages; at the end none may have failed, or asked anybody but its server."""
    opened = Opened(browser)
    yield opened
    assert opened.problems() == []
    opened.close()
