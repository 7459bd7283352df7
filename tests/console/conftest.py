"""A browser, a demo with traffic, and pages that must neither fail nor ask another origin."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.pages import MAIN, Opened
from tests.service.serving import serving

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def demo() -> Iterator[str]:
    """The address of a demo whose traffic goes on."""
    command = [sys.executable, "-c", MAIN, "demo", "--serve", "--requests", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            yield next(found[1] for line in lines if (found := re.search(r"_URL=(\S+)", line)))
        finally:
            process.terminate()
            process.stdout.read()


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
