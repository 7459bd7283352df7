"""Every page for everyone: by keyboard, with contrast, on a phone, in the dark."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import PAGES, Opened

SCHEMES = ("light", "dark")
LEAST_RATIO = 4.5
"""WCAG 2.2 AA for text of any size."""

RATIOS = """() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.disabled) continue;
    if (element.closest("option, script, noscript, title")) continue;
    const [one, other] = [parse(getComputedStyle(element).color), ground(element)].map(luminance);
    found.push([(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), text]);
  }
  return found;
}"""


def ready(page: Page) -> Page:
    expect(page.get_by_role("status")).to_have_text("Live")
    page.wait_for_timeout(300)
    return page


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_all_text_has_contrast(opened: Opened, demo: str, name: str, scheme: str) -> None:
    page = ready(opened(f"{demo}/{name}", scheme=scheme))
    texts: list[tuple[float, str]] = [(ratio, text) for ratio, text in page.evaluate(RATIOS)]
    assert len(texts) > 10
    assert [each for each in texts if each[0] < LEAST_RATIO] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(opened: Opened, demo: str, name: str) -> None:
    page = ready(opened(f"{demo}/{name}", width=360))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    hidden = page.evaluate("""() =>
      [...document.querySelectorAll("button, a, input, select, textarea")]
      .filter((it) => !it.closest(".skip, .scroll") && it.getBoundingClientRect().right > 360)
      .map((it) => it.outerHTML)""")
    assert hidden == []


def focused(page: Page) -> Any:  # noqa: ANN401
    return page.evaluate(
        "[document.activeElement.tagName, document.activeElement.innerText || "
        "document.activeElement.name || document.activeElement.type]"
    )


def test_the_keyboard_reaches_everything_and_stays_where_it_is(opened: Opened, demo: str) -> None:
    page = ready(opened(demo))
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        reached.append(tuple(focused(page)))
    assert reached == [
        ("A", "Skip to the page"), ("A", "kvbraid"), ("A", "Fleet"), ("A", "Requests"),
        ("A", "Explain"), ("A", "Ladder"), ("A", "Policy"), ("A", "Config"), ("A", "JSON"),
        ("INPUT", "find"),
    ]  # fmt: skip
    page.keyboard.type("gpt-oss-1")
    page.wait_for_timeout(1500)  # Messages come, and rows are drawn anew.
    assert tuple(focused(page)) == ("INPUT", "find")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused(page)[1].startswith("gpt-oss-1")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Hashes placed by")).to_be_visible()
    assert focused(page)[1].startswith("gpt-oss-1")


def test_a_request_is_chosen_explained_and_closed_by_keyboard(opened: Opened, demo: str) -> None:
    page = ready(opened(f"{demo}/requests"))
    page.get_by_role("button", name="Hold still").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    panel = page.get_by_role("region", name="Chosen request")
    expect(panel).to_be_visible()
    panel.get_by_role("link", name="Explain").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("article").first).to_be_visible()
    page.go_back()
    panel.get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")
    expect(panel).to_have_count(0)


def test_the_skip_link_leads_to_the_page(opened: Opened, demo: str) -> None:
    page = ready(opened(demo))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("name", PAGES)
def test_everything_that_can_be_used_has_a_name(opened: Opened, demo: str, name: str) -> None:
    page = ready(opened(f"{demo}/{name}"))
    for role in ("button", "link", "textbox", "searchbox", "combobox", "img"):
        for element in page.get_by_role(role).all()[:40]:
            told = element.aria_snapshot()
            assert '"' in told or told.startswith("- img"), told
