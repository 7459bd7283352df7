"""Every page against a demo with traffic: what it says, to eyes and to screen readers."""

import json
import re
import signal
from pathlib import Path

import httpx
import pytest
from kvbraid.service.http.events import MOST_ROWS
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from playwright.sync_api import Page, expect

from tests.console.pages import PAGES, Opened, put
from tests.service.serving import ONE_POD, serving, until
from tests.unit.gateway.model_folders import TURNS, write_model

FRAME = """
- link "Skip to the page"
- banner:
  - link "kvbraid":
    - /url: /
  - navigation "Pages":
    - link "Fleet"
    - link "Requests"
    - link "Explain"
    - link "Ladder"
    - link "Policy"
    - link "Config"
  - paragraph:
    - status: Live
- main
"""


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_the_frame_the_fresh_state_and_its_data_as_json(
    opened: Opened, demo: str, page: str
) -> None:
    shown = opened(f"{demo}/{page}")
    expect(shown.get_by_role("status")).to_have_text("Live")
    expect(shown.locator("body")).to_match_aria_snapshot(FRAME)
    expect(shown).to_have_title(f"{page.capitalize()} · kvbraid")
    here = shown.get_by_role("navigation").get_by_role("link", name=page.capitalize())
    assert here.get_attribute("aria-current") == "page"
    data = shown.get_by_role("link", name="JSON").get_attribute("href")
    assert httpx.get(f"{demo}{data}").json()


def test_the_fleet_shows_pods_by_model_with_units_and_ages(opened: Opened, demo: str) -> None:
    page = opened(demo)
    table = page.get_by_role("table")
    expect(table).to_match_aria_snapshot("""
- table:
  - rowgroup:
    - row:
      - columnheader "Pod"
      - columnheader "State"
      - columnheader "Since"
      - columnheader "Running"
      - columnheader "Waiting"
      - columnheader "Pool in use"
      - columnheader "Blocks"
      - columnheader "Index memory"
      - columnheader "Last events"
      - columnheader "Event lag"
      - columnheader "Placed"
      - columnheader "Refused"
  - rowgroup:
    - row "gpt-oss-sim 2 ranks"
    - row /gpt-oss-0 exact .* ago/
    - row /gpt-oss-1 exact .* ago/
  - rowgroup:
    - row "qwen3-next-sim 2 ranks"
    - row /qwen3-next-0 exact .* ago/
    - row /qwen3-next-1 exact .* ago/
""")
    row = page.get_by_role("row", name=re.compile("gpt-oss-0"))
    memory = row.locator('[data-label="Index memory"]')
    expect(memory).to_have_text(re.compile(r"^[1-9][\d.]* [kM]B$"))
    expect(row.locator('[data-label="Last events"]')).to_have_text(
        re.compile(r"^(now|\d+ (s|min) ago) batch \d+")
    )
    expect(row.locator('[data-label="Event lag"]')).to_have_text(re.compile(r"^[\d.]+ (µs|ms|s)$"))


def test_details_of_a_pod_open_and_stay_open(opened: Opened, demo: str) -> None:
    page = opened(demo)
    button = page.get_by_role("button", name="gpt-oss-0")
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    told = page.get_by_text("group 0: sliding window, blocks of 16 tokens, window of 128 tokens")
    expect(told).to_be_visible()
    page.wait_for_timeout(1500)  # Two more messages.
    expect(told).to_be_visible()


def test_filters_stand_in_the_address(opened: Opened, demo: str) -> None:
    page = opened(demo)
    page.get_by_label("Find").fill("qwen3-next-1")
    expect(page.get_by_role("button", name=re.compile("qwen|gpt"))).to_have_count(1)
    assert page.url.endswith("?find=qwen3-next-1")
    page.get_by_label("State").select_option("degraded")
    expect(page.get_by_text("No pod matches.")).to_be_visible()
    again = opened(page.url.replace("&state=degraded", ""))
    expect(again.get_by_label("Find")).to_have_value("qwen3-next-1")
    expect(again.get_by_role("button", name=re.compile("qwen|gpt"))).to_have_count(1)


def test_what_a_group_holds_is_a_share_of_the_pool_and_bytes_if_their_sizes_are_known(
    opened: Opened, server: str
) -> None:
    put(server, "a", num_gpu_blocks=1000, block_bytes=589824)
    put(server, "b", num_gpu_blocks=1000)
    page = opened(server)
    page.get_by_role("button", name="a", exact=True).click()
    expect(page.get_by_text("Blocks held by group, never")).to_be_visible()
    expect(page.get_by_text("0 on GPU, 0 % of its pool, 0 B", exact=True)).to_have_count(2)
    page.get_by_role("button", name="b", exact=True).click()
    expect(page.get_by_text("0 on GPU, 0 % of its pool", exact=True)).to_have_count(2)
    expect(page.get_by_text("Give its num_gpu_blocks and block_bytes")).to_have_count(1)


def test_the_bytes_of_a_group_are_those_of_its_blocks(opened: Opened, demo: str) -> None:
    row = next(
        it for it in httpx.get(f"{demo}/v1/pods").json()["pods"] if it["pod"] == "gpt-oss-1"
    )
    known = {name: row[name] for name in ("model", "endpoint", "replay_endpoint")}
    topology = topology_body(PRESETS[row["model"]].topology)
    body = {**known, "topology": topology, "block_bytes": 1000}
    told = httpx.put(f"{demo}/v1/pods/gpt-oss-1", json=body).json()
    assert told["status"] == "changed"
    page = opened(demo)
    page.get_by_role("button", name="gpt-oss-1").click()
    expect(page.get_by_text(re.compile(r"^(\d+) on GPU, \1(\.0)? kB$"))).to_have_count(2)


def test_a_link_shows_a_request_as_long_as_the_server_keeps_it(
    opened: Opened, server: str
) -> None:
    put(server, "a")
    with httpx.Client(base_url=server) as client:
        for number in range(MOST_ROWS + 1):
            body = {"model": "m", "token_ids": [1], "request_id": f"r r/{number}"}
            assert client.post("/v1/pick", json=body).is_success
    page = opened(f"{server}/requests?request=r+r%2F0")
    panel = page.get_by_role("region", name="Chosen request")
    expect(panel.get_by_role("heading", level=2)).to_have_text("r r/0")
    data = page.get_by_role("link", name="JSON").get_attribute("href")
    (row,) = httpx.get(f"{server}{data}").json()["requests"]
    assert row["request"] == "r r/0"


def newest(page: Page) -> str:
    return page.locator("tbody tr").first.get_by_role("link").inner_text()


def test_requests_come_in_and_can_be_held_still(opened: Opened, demo: str) -> None:
    page = opened(f"{demo}/requests")
    expect(page.locator("tbody tr").first).to_be_visible()
    first = newest(page)
    assert until(lambda: newest(page), lambda name: name != first, limit_s=60) != first
    page.get_by_role("button", name="Hold still").click()
    held = page.get_by_role("button", name="Held still")
    expect(held).to_have_attribute("aria-pressed", "true")
    first = newest(page)
    page.wait_for_timeout(2500)
    assert newest(page) == first
    held.click()
    assert until(lambda: newest(page), lambda name: name != first, limit_s=60) != first


def test_a_request_shows_every_term_of_both_ranks_and_its_ladder(
    opened: Opened, demo: str
) -> None:
    rows = httpx.get(f"{demo}/v1/requests").json()["requests"]
    row = next(row for row in rows if row["ladder"] and row["runner_up"])
    page = opened(f"{demo}/requests?request={row['request']}")
    panel = page.get_by_role("region", name="Chosen request")
    expect(panel.get_by_role("heading", level=2)).to_have_text(row["request"])
    for term in row["chosen"]["terms"]:
        expect(panel.get_by_role("rowheader", name=re.compile(f"^{term} "))).to_be_visible()
    expect(panel.get_by_role("row", name=re.compile("^all "))).to_have_text(
        re.compile(rf"{row['chosen']['cost'] * 1000:.1f} ms.*")
    )
    ladder = panel.get_by_role("table").nth(1)
    for gap in row["ladder"]["gaps"]:
        told = f"{gap['tokens']}: {gap['reason'].replace('_', ' ')}"
        expect(ladder.get_by_text(told)).to_be_visible()
    delivered = ladder.get_by_role("row", name=re.compile("^Delivered"))
    expect(delivered.get_by_role("cell", name=str(row["delivered"]), exact=True)).to_be_visible()


def test_explain_draws_the_strips_of_a_kept_request(opened: Opened, demo: str) -> None:
    name = httpx.get(f"{demo}/v1/requests").json()["requests"][0]["request"]
    told = httpx.get(f"{demo}/explain.json", params={"request": name}).json()
    page = opened(f"{demo}/explain?request={name}")
    expect(page.get_by_role("article")).to_have_count(len(told["pods"]))
    groups = sum(len(pod["groups"]) for pod in told["pods"])
    strips = page.get_by_role("img", name=re.compile(r"^group \d, .*: [\d,]+ blocks? of .* held"))
    expect(strips).to_have_count(groups)
    expect(page.get_by_role("combobox", name="Request")).to_have_value(name)


def test_explain_takes_a_prompt_and_says_what_is_wrong_with_it(opened: Opened, demo: str) -> None:
    page = opened(f"{demo}/explain")
    expect(page.get_by_text("Nothing is explained yet.")).to_be_visible()
    explain(page, "gpt-oss-sim", "[1, 2, 3]")
    expect(page.get_by_role("heading", name="gpt-oss-sim, 3 tokens")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(2)
    opened.may_fail = True  # The browser's console tells of the 404.
    page.get_by_label("Model").fill("none")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no registered pod serves model 'none'")


def explain(page: Page, model: str, prompt: str) -> None:
    page.get_by_label("Model").fill(model)
    page.get_by_label("Token ids").fill(prompt)
    page.get_by_role("button", name="Explain", exact=True).click()


def test_explain_takes_a_text_where_the_server_makes_token_ids(
    opened: Opened, server: str, tmp_path: Path
) -> None:
    text, chat = "Who <b>holds</b> 1, 2, 3?", '[{"role": "user", "content": "Who holds it?"}]'
    config = tmp_path / "route.toml"
    pod = ONE_POD.format(folder=tmp_path, url="http://127.0.0.1:9")
    config.write_text(f'{pod}\n[tokens.m]\nfolder = "{write_model(tmp_path / "m", TURNS)}"\n')
    with serving("--config", str(config), name="route") as (_, url):
        page = opened(f"{url}/explain")
        for prompt in ({"prompt": text}, {"messages": json.loads(chat)}):
            body = {"model": "m", **prompt}
            num_tokens = httpx.post(f"{url}/v1/tokens", json=body).json()["num_tokens"]
            explain(page, "m", text if "prompt" in prompt else chat)
            heading = page.get_by_role("heading", name=f"m, {num_tokens} tokens")
            expect(heading).to_be_visible()
    opened.may_fail = True  # The browser's console tells of the 404.
    page = opened(f"{server}/explain")
    explain(page, "m", text)
    expect(page.get_by_role("alert")).to_contain_text("this server makes no token ids of prompts")


def test_the_policy_says_what_terms_weigh_and_what_prompts_cost(opened: Opened, demo: str) -> None:
    page = opened(f"{demo}/policy")
    for card in ("Potential 0.5", "Displacement 0.5"):
        label, value = card.split()
        expect(page.locator(".card", has_text=label).get_by_role("definition")).to_contain_text(
            value
        )
    terms = page.get_by_role("table").first
    expect(
        terms.get_by_role("row", name=re.compile("^prefill its prefill .* m?s"))
    ).to_be_visible()
    row = page.get_by_role("table").nth(1).get_by_role("row", name=re.compile("^gpt-oss-sim"))
    expect(row).to_contain_text("default12.0 ms62.5 ms2.1 ms579 ms")
    expect(row).to_contain_text("not fitted")


def test_the_configuration_in_force_and_the_last_refused_one(
    opened: Opened, tmp_path: Path
) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text("[console]\nrequests = 77\n")
    with serving("--config", str(config)) as (process, url):
        page = opened(f"{url}/config")
        page.get_by_text("[console]").click()
        expect(page.get_by_text("requests = 77")).to_be_visible()
        config.write_text("[console]\nrequests = 78\n\n[router]\nqueue = -1\n")
        process.send_signal(signal.SIGHUP)
        expect(page.get_by_role("alert")).to_contain_text(
            re.compile("The file was refused.*queue")
        )
        expect(page.get_by_text("requests = 77")).to_be_visible()
        config.write_text("[console]\nrequests = 78\n")
        process.send_signal(signal.SIGHUP)
        expect(page.get_by_text("console.requests: at the next start")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_the_ladder_is_drawn_and_its_table_has_the_sums(opened: Opened, demo: str) -> None:
    page = opened(f"{demo}/ladder?minutes=60")
    expect(page.get_by_role("heading", name="Tokens of prompts, each 10 s")).to_be_visible()
    coloured = """() => {
      const drawn = document.querySelector("#chart canvas");
      if (!drawn) return 0;
      const {width, height} = drawn;  // A canvas that is read twice makes a browser complain.
      const copy = new OffscreenCanvas(width, height).getContext("2d");
      copy.drawImage(drawn, 0, 0);
      const {data} = copy.getImageData(0, 0, width, height);
      let green = 0;
      for (let at = 0; at < data.length; at += 4)
        green += data[at] === 58 && data[at + 1] === 147 && data[at + 2] === 96;
      return green;
    }"""
    assert until(lambda: int(page.evaluate(coloured)), lambda n: n > 50, limit_s=60) > 50

    def shown() -> int:
        row = page.get_by_role("row", name=re.compile("^reused by the engines"))
        return int(row.get_by_role("cell").nth(1).inner_text().replace(",", ""))

    def true() -> int:
        rows = httpx.get(f"{demo}/ladder.json").json()["intervals"]
        return sum(row["delivered"] for row in rows)

    before = true()  # Requests end all the time.
    seen = until(shown, lambda tokens: tokens >= before, limit_s=60)
    assert 0 < before <= seen <= true()
