"""Pages of a server with keys: one is asked for once, stays in its tab, and is revoked at once."""

import re
import signal
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import POD, Opened
from tests.service.serving import serving

KEYS = {
    "looker": ["read", "explain"],
    "reader": ["read"],
    "router": ["route"],
}


def key_table(name: str) -> str:
    hashed = sha256(f"key-of-{name}".encode()).hexdigest()
    return f'[[keys]]\nname = "{name}"\nsha256 = "{hashed}"\nrights = {KEYS[name]}\n'


class Keyed(NamedTuple):
    """A server of one pod whose file has all keys."""

    url: str
    config: Path
    process: subprocess.Popen[str]

    def keep(self, *names: str) -> None:
        """Have it know these keys alone from now on."""
        self.config.write_text("".join(map(key_table, names)) + POD.format(0, 0))
        self.process.send_signal(signal.SIGHUP)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    config = tmp_path / "fleet.toml"
    config.write_text("".join(map(key_table, KEYS)) + POD.format(0, 0))
    with serving("--config", str(config)) as (process, url):
        yield Keyed(url, config, process)


def present(page: Page, name: str) -> None:
    page.get_by_label("Key").fill(f"key-of-{name}")
    page.get_by_role("button", name="Use this key").click()


def shows_pods(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.get_by_role("button", name="pod-0")).to_be_visible()


def asks_for_a_key(page: Page, why: str) -> None:
    expect(page.get_by_role("heading", name="This server asks for a key")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text(why)
    expect(page.get_by_role("button", name="pod-0")).to_have_count(0)


def test_a_key_is_asked_for_once_and_stays_in_its_tab(opened: Opened, keyed: Keyed) -> None:
    opened.may_fail = True  # The browser's console tells of each 401.
    page = opened(keyed.url)
    expect(page.get_by_role("status")).to_have_text("No access")
    asks_for_a_key(page, "needs a key with the rights read and explain")
    present(page, "nobody")
    asks_for_a_key(page, "does not know this key")
    present(page, "router")
    asks_for_a_key(page, "key router has no right read")
    present(page, "looker")
    shows_pods(page)
    opened.may_fail = False
    page.reload()
    shows_pods(page)
    assert "key-of" not in page.url
    page.get_by_role("link", name="Explain").click()
    page.get_by_label("Model").fill("m0")
    page.get_by_label("Token ids").fill("1, 2, 3")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_role("heading", name="m0, 3 tokens")).to_be_visible()
    page.get_by_role("link", name="Config").click()
    for row in ("looker read, explain", "router route"):
        expect(page.get_by_role("row", name=row)).to_contain_text(re.compile("now|ago"))
    expect(page.get_by_role("row", name="reader read")).to_contain_text("never")
    opened.may_fail = True
    asks_for_a_key(opened(keyed.url), "needs a key")


def test_the_data_of_a_page_are_fetched_with_its_key(opened: Opened, keyed: Keyed) -> None:
    opened.may_fail = True  # A page without a key, and a request to a blob.
    page = opened(keyed.url)
    present(page, "looker")
    shows_pods(page)
    page.get_by_role("link", name="JSON").click()
    expect(page.get_by_text('"pod":"pod-0"')).to_be_visible()
    page.go_back()
    shows_pods(page)


def test_a_key_that_is_revoked_while_a_stream_is_open_shows_nothing_more(
    opened: Opened, keyed: Keyed
) -> None:
    opened.may_fail = True
    page = opened(keyed.url)
    present(page, "looker")
    shows_pods(page)
    keyed.keep("looker", "router")  # The stream ends, and is asked for again.
    expect(page.get_by_role("status")).to_have_text("Live")
    shows_pods(page)
    keyed.keep("router")
    asks_for_a_key(page, "does not know this key, or not any longer")
    keyed.keep("looker")
    present(page, "looker")
    shows_pods(page)
    page.get_by_role("button", name="Forget the key").click()
    asks_for_a_key(page, "needs a key")


def test_a_key_that_may_only_read_is_told_so_when_a_prompt_is_explained(
    opened: Opened, keyed: Keyed
) -> None:
    opened.may_fail = True
    page = opened(f"{keyed.url}/explain")
    present(page, "reader")
    page.get_by_label("Model").fill("m0")
    page.get_by_label("Token ids").fill("1, 2, 3")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("key reader has no right explain")
