"""Takes the pictures of docs/console.md: `python -m tests.console.screenshots FOLDER`."""

import sys
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from tests.console.pages import chromium, demonstrating

TRAFFIC_MS = 60_000
"""So long requests come in before the pictures, so that there is something to see."""


def picture(page: Page, url: str, place: Path, *, height: int) -> None:
    page.set_viewport_size({"width": 1180, "height": height})
    page.goto(url)
    page.wait_for_timeout(3000)
    page.screenshot(path=place)


def one_that_lost(url: str) -> str:
    """Return the name of a request of a fleet with windows that lost something to a state."""
    rows = httpx.get(f"{url}/v1/requests").json()["requests"]
    return next(
        str(row["request"])
        for row in rows
        for gap in (row["ladder"] or {"gaps": []})["gaps"]
        if gap["reason"] == "state_missing" and row["model"].startswith("gpt") and row["delivered"]
    )


def main() -> None:
    folder, program = Path(sys.argv[1]), chromium()
    with demonstrating() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        page.wait_for_timeout(TRAFFIC_MS)
        picture(page, f"{url}/fleet", folder / "console-fleet.png", height=520)
        name = one_that_lost(url)
        picture(
            page, f"{url}/requests?request={name}", folder / "console-requests.png", height=930
        )
        picture(page, f"{url}/explain?request={name}", folder / "console-explain.png", height=880)
        picture(page, f"{url}/ladder", folder / "console-ladder.png", height=720)
        picture(page, f"{url}/policy", folder / "console-policy.png", height=760)
        picture(page, f"{url}/config", folder / "console-config.png", height=620)
        browser.close()


if __name__ == "__main__":
    main()
