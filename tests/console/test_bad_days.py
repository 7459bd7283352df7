"""Bad days of a page: nothing there, hostile names, a server that goes and comes back, crowds."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Error, Page, Route, expect

from tests.console.pages import MAIN, PAGES, POD, Opened, end, pick, put, quiet_port
from tests.service.serving import serving, until

EMPTY = {
    "fleet": ("No pods are registered.", "PUT /v1/pods/NAME"),
    "requests": ("No request has been decided yet.", "POST /v1/pick"),
    "explain": ("Nothing is explained yet.", "/tokenize"),
    "ladder": ("No request has ended yet.", "POST /v1/picked"),
    "policy": ("No model has been asked for yet.", "[router.seconds.MODEL]"),
    "config": ("There are no keys.", "kvbraid new-key"),
}
HOSTILE = "<img src=x onerror=alert(1)>\"'&lt;${1}</td>\u202egnol\u0007"
LONG_POD = "p" + "-/:." * 31


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_page_says_what_to_do(opened: Opened, server: str, name: str) -> None:
    page = opened(f"{server}/{name}")
    for text in EMPTY[name]:
        expect(page.get_by_text(text)).to_be_visible()


def test_hostile_names_are_text_on_every_page(opened: Opened, server: str) -> None:
    put(server, LONG_POD, model=HOSTILE)
    pick(server, HOSTILE, model=HOSTILE)
    end(server, HOSTILE)
    query = str(httpx.QueryParams({"request": HOSTILE}))
    for name in ("fleet", f"requests?{query}", f"explain?{query}", "ladder"):
        page = opened(f"{server}/{name}")
        expect(page.get_by_role("status")).to_have_text("Live")
        expect(page.locator("bdi", has_text="<img src=x onerror=alert(1)>").first).to_be_visible()
        assert page.locator("main img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        if name == "ladder":
            expect(page.get_by_role("combobox", name="Model")).to_contain_text("<img src=x")


def test_a_hostile_address_is_text(opened: Opened, server: str) -> None:
    put(server, "a")
    pick(server, "r")
    page = opened(f"{server}/requests?request=%3Cimg%20src%3Dx%3E&find=%22%3E%3Cb%3E")
    expect(page.get_by_text("no longer among the last")).to_be_visible()
    expect(page.get_by_label("Find")).to_have_value('"><b>')
    opened.may_fail = True  # The browser's console tells of the 404.
    page = opened(f"{server}/explain?request=%3Cimg%20src%3Dx%3E")
    expect(page.get_by_role("alert")).to_contain_text("'<img src=x>' is not among the last")


@contextmanager
def started(port: int) -> Iterator[str]:
    """Start a server at a port; at the end it is killed."""
    command = [sys.executable, "-c", MAIN, "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_a_server_that_goes_makes_the_page_stale_until_it_is_back(opened: Opened) -> None:
    port = quiet_port()
    with started(port) as url:
        put(url, "before")
        page = opened(url)
        status = page.get_by_role("status")
        expect(status).to_have_text("Live")
        opened.may_fail = True
    expect(status).to_have_text("Not connected")
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"The server does not answer. What is shown was true \d+ s ago.")
    )
    assert page.locator("main").get_attribute("class") == "stale"
    expect(page.get_by_role("button", name="before")).to_be_visible()
    with started(port) as url:
        put(url, "after")
        with suppress(Error):  # It asks by itself, too, and then has no such button.
            page.get_by_role("button", name="Ask now").click(timeout=2_000)
        expect(status).to_have_text("Live")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_role("button", name="after")).to_be_visible()
        expect(page.get_by_role("button", name="before")).to_have_count(0)


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_hidden_page_asks_nothing_and_goes_on_when_it_is_seen(
    opened: Opened, server: str
) -> None:
    put(server, "a")
    page = opened(server)
    expect(page.get_by_role("status")).to_have_text("Live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide(page, True)
    put(server, "b")
    page.wait_for_timeout(2500)
    assert asked == []
    expect(page.get_by_role("button", name="b", exact=True)).to_have_count(0)
    hide(page, False)
    expect(page.get_by_role("button", name="b", exact=True)).to_be_visible()
    assert len(asked) == 1


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[str]:
    """The address of a server with 500 pods of three models."""
    config = tmp_path / "fleet.toml"
    config.write_text("".join(POD.format(number, number % 3) for number in range(500)))
    with serving("--config", str(config)) as (_, url):
        yield url


def test_of_500_pods_and_many_requests_a_page_draws_a_part(opened: Opened, crowd: str) -> None:
    page = opened(crowd)
    expect(page.get_by_text("Show 50 more of 500 ranks")).to_be_visible()
    assert page.locator("tbody button").count() == 50
    page.get_by_role("button", name="Show 50 more").click()
    expect(page.locator("tbody button")).to_have_count(100)
    page.get_by_label("Find").fill("pod-499")
    expect(page.locator("tbody button")).to_have_count(1)
    with httpx.Client(base_url=crowd) as client:
        for number in range(60):
            client.post("/v1/pick", json={"model": "m0", "token_ids": [number]})
    page = opened(f"{crowd}/requests")
    page.get_by_role("button", name=re.compile(r"Show 25 more of \d+ requests")).click()
    expect(page.locator("tbody tr")).to_have_count(50)


def test_a_page_without_prompts_says_how_to_keep_them(opened: Opened) -> None:
    with started(quiet_port()) as url:
        put(url, "a")
        pick(url, "r")
        page = opened(f"{url}/explain")
        expect(page.get_by_text("Set prompts = true under [console]")).to_be_visible()


def test_too_many_pages_are_told_no_more_than_the_limit(opened: Opened, server: str) -> None:
    put(server, "a")
    with httpx.Client(base_url=server) as client:
        streams = [client.send(client.build_request("GET", "/v1/events"), stream=True)
                   for _ in range(32)]  # fmt: skip
        opened.may_fail = True
        page = opened(server)
        expect(page.get_by_role("status")).to_have_text("Not connected")
        for stream in streams:
            stream.close()
    expect(page.get_by_role("status")).to_have_text("Live")


MESSAGES_A_DAY = 200
SIZES = """async () => {
  const {live} = await import("/console/stream.js");
  return [live.pods.size, live.requests.size, live.intervals.size];
}"""


def day_of(server: str, number: int) -> str:
    """Return what is told in a day: pods and requests come and go, and intervals pass."""
    pod = httpx.get(f"{server}/v1/pods").json()["pods"][0]
    row = httpx.get(f"{server}/v1/requests").json()["requests"][0]
    messages = []
    for at in range(number * MESSAGES_A_DAY, (number + 1) * MESSAGES_A_DAY):
        now = at * 86_400 // MESSAGES_A_DAY
        told: dict[str, dict[str, object]] = {
            "pods": {
                "memory_bytes": 1,
                "changed": [pod | {"pod": f"pod-{at}"}],
                "gone": [[f"pod-{at - 50}", 0]],
            },
            "requests": {
                "num_changed": 10,
                "changed": [
                    row | {"request": f"{at}-{each}", "decided_s": now} for each in range(10)
                ],
            },
            "ladder": {
                "models": [],
                "interval_s": 10,
                "intervals": [{"model": "m", "begin_s": now, "gaps": []}],
            },
        }
        for topic, data in told.items():
            data |= {"is_whole": at == 0, "now_s": now}
            messages.append(f"event: {topic}\ndata: {json.dumps(data)}\n\n")
    return "".join(messages)


def test_a_page_that_is_left_open_for_days_does_not_grow(opened: Opened, server: str) -> None:
    put(server, "a")
    pick(server, "r")
    page = opened(f"{server}/requests")
    days: list[int] = []

    def tell(route: Route) -> None:
        days.append(len(days))
        route.fulfill(body=day_of(server, days[-1]), content_type="text/event-stream")

    def used() -> int:
        """Return the bytes of what the page still refers to, and of a day if one is being told."""
        session.send("HeapProfiler.collectGarbage")
        return int(session.send("Runtime.getHeapUsage")["usedSize"])

    def wait_for(num_days: int) -> None:
        told = until(lambda: (page.evaluate(SIZES), len(days))[1], num_days.__lt__, limit_s=100)
        assert told > num_days

    page.route("**/v1/events*", tell)
    session = page.context.new_cdp_session(page)
    page.reload()
    wait_for(2)
    most = used() + (1 << 20)
    wait_for(8)
    assert until(used, most.__gt__, limit_s=60) < most, "two megabytes are told each day"
    assert page.evaluate(SIZES) == [50, 500, 9]
    assert page.locator("tbody tr").count() == 25
