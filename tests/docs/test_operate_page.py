"""The page on operating kvbraid: the service's own remedies, sums that add up, answers as said."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.engine import EngineProfile
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.models import CONFIGS
from kvbraid.service.config import Limits, PodConfig
from kvbraid.service.http.access import Access
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import Metrics
from kvbraid.service.journal import EVENTS, LINES, PERIOD_S, Journal, Rank
from kvbraid.service.logs import JsonFormatter, TextFormatter
from kvbraid.service.registry import Service
from kvbraid.service.remedy import remedy_for
from kvbraid.service.replicas import SharedState, SharedTable
from kvbraid.service.requests import PickFields, PickRequest, ReportBody
from kvbraid.service.shards.front import Front
from kvbraid.service.snapshots import Snapshots
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.docs.markdown import DOCS, blocks, codes, firsts, tables
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.serving import serving

POD: Final = PodConfig(model="m", endpoint="tcp://h:5557")
LISTED: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
SECONDS: Final = {"15 minutes": 900, "one hour": 3600, "since the start, a week ago": 604_800}


def test_the_page_explains_each_part_of_a_remedy() -> None:
    pods = (POD, replace(POD, replay_endpoint="tcp://h:5558"))
    said = {
        part for pod in pods for part in remedy_for(PodState.DEGRADED, pod).split("; ") if part
    }
    (table,) = tables("operate.md", "A pod that kvbraid met late")
    assert {first for first, _ in table} == said


SGLANG: Final = EngineProfile(dialect=EngineDialect.SGLANG)


@pytest.mark.parametrize(
    ("pod", "is_said"),
    [
        (POD, True),
        (replace(POD, topology=LISTED), True),
        (replace(POD, engine=EngineProfile(num_gpu_blocks=9)), False),
        (replace(POD, engine=EngineProfile(report_mode="full")), False),
        (replace(POD, engine=SGLANG), False),
        (replace(POD, engine=EngineProfile(extra_keys=True)), False),
        (replace(POD, topology=replace(LISTED, partial_hits=True)), False),
    ],
)
def test_a_remedy_names_the_size_of_the_pool_where_it_helps(pod: PodConfig, is_said: bool) -> None:
    assert ("num_gpu_blocks" in remedy_for(PodState.DEGRADED, pod)) is is_said


@pytest.mark.parametrize("state", [PodState.EXACT, PodState.REBUILDING, PodState.STALE])
def test_nothing_is_to_be_done_if_nothing_is_lost(state: PodState) -> None:
    assert remedy_for(state, POD) == ""


def test_the_sizes_are_batches_per_second_times_seconds() -> None:
    (table,) = tables("operate.md", "How large the buffer has to be")
    assert table
    for rate, outage, steps in table:
        assert int(rate) * SECONDS[outage] == int(steps.replace(" ", ""))


@pytest.mark.parametrize(("topology", "lower"), [(LISTED, 32), (None, 0)])
def test_a_pod_that_was_met_late_answers_as_the_page_says(
    topology: Topology | None, lower: int
) -> None:
    index, pod = FleetIndex(), PodId("a")
    index.register(pod, model="m", topology=topology)
    index.lose(pod)
    index.set_state(pod, PodState.DEGRADED, reason="batches 0 to 3 are lost")
    stored = BlockStored(
        block_hashes=(1, 2),
        parent_block_hash=None,
        token_ids=tuple(range(32)),
        block_size=16,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    index.apply(pod, encode_batch([stored]))
    (row,) = index.score(Request(model="m", token_ids=tuple(range(65)))).rows
    assert (row.lower, row.expected, row.upper) == (lower, 32, 64)


class Saved(Snapshots):
    """A pod was saved once, and there is nothing to load."""

    def ages_s(self) -> dict[PodId, float]:
        return {PodId("a"): 1.0}


class OtherServer:
    """A server of replicas that is there."""

    problem = ""
    counts: Final = {"connected": 1}


class OtherLog:
    """A log of events that is there."""

    problem = ""
    counts: Final = {"read": 1}
    server: Final = OtherServer()
    waiting_bytes = 0


@pytest.fixture
def metrics(tmp_path: Path) -> str:
    """What a server that has followed, refused and answered something exports."""
    service = Service(FakeIndex(), FakeFeed())
    service.snapshots = Saved(tmp_path, FleetIndex(), journal=Journal())
    service.shared = SharedState("a", OtherServer(), {"taken": 1})
    service.front = Front(SharedTable(shards=["http://127.0.0.1:9"]), None)
    service.front.close()
    service.log = OtherLog()
    connection_limits = ConnectionLimits(Limits())
    service.put(PodId("a"), POD)
    asked = PickRequest(
        Request(model="m", token_ids=[1]), PickFields(model="m", candidates=["a", "x"])
    )
    service.picking.report(
        ReportBody(pick=service.picking.pick(asked, service.pods).pick, event="end")
    )
    connection_limits.refused["evicted"] += 1
    exported = Metrics(service, connection_limits, Access(token="t"))
    exported.requests.of("GET", "/metrics")[200] += 1
    return exported.render().decode()


def test_the_metrics_are_those_that_a_server_exports(metrics: str) -> None:
    (table,) = tables("operate.md", "Metrics")
    types = re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.MULTILINE)
    assert [(row[0].strip("`"), row[1]) for row in table] == types
    with serving() as (_, url):
        live = httpx.get(f"{url}/metrics").text
    assert re.findall(r"^# TYPE (\w+) (\w+)$", live, re.MULTILINE) == types


def test_the_labels_of_each_metric_are_listed(metrics: str) -> None:
    (table,) = tables("operate.md", "Metrics")
    for first, _, labels, _ in table:
        (name,) = codes(first)
        (shown, *_) = re.findall(rf"^{name}(?:_bucket)?(\{{.*\}})? ", metrics, re.MULTILINE)
        assert set(codes(labels)) == set(re.findall(r'(\w+)="', shown)), name


UNSEEN: Final = {
    "limits.idle_s",
    "gateway.kept_bytes",
    "index.seen_limit_bytes",
    "console.requests",
    "console.prompt_bytes",
}
"""Limits that refuse nobody anything."""


def test_each_limit_that_refuses_something_has_a_metric_that_shows_it() -> None:
    (table,) = tables("operate.md", "Limits, and where they show")
    (limits,) = tables("threat-model.md", "Limits")
    reached = [code for _, cell in table for code in codes(cell)]
    assert sorted(reached) == sorted(set(firsts(limits)) - UNSEEN)
    metrics = {
        name
        for page, heading in (
            ("operate.md", "Metrics"), ("gateway.md", "What is counted"),
            ("envoy.md", "What is counted"),
        )
        for rows in tables(page, heading)
        for name in firsts(rows)
    }  # fmt: skip
    assert {name for name in firsts(table) if name.startswith("kvbraid_")} <= metrics
    assert all(codes(cell)[0].startswith("kvbraid_") for cell, _ in table)


def test_without_a_limit_memory_may_be_infinite(metrics: str) -> None:
    assert "kvbraid_memory_limit_bytes +Inf" in metrics.splitlines()


def test_the_events_of_the_log_are_listed_with_their_levels() -> None:
    (table,) = tables("operate.md", "The log")
    assert [(row[0].strip("`"), row[1]) for row in table] == [
        (event, logging.getLevelName(level).lower()) for event, level in EVENTS.items()
    ]
    text = (DOCS / "operate.md").read_text()
    assert f"at most {LINES} lines are written in {PERIOD_S:.0f} seconds" in text


def test_the_lines_of_the_log_are_what_the_formats_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    section = (DOCS / "operate.md").read_text().split("\n## The log\n")[1].split("\n## ")[0]
    text, as_json = re.findall(r"^```\w*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    with caplog.at_level(logging.INFO, "kvbraid"):
        Journal().note("state", Rank("gpt-oss-0", 0), "degraded, batches 0 to 85 are lost")
    (record,) = caplog.records
    record.created = 1767225600.0
    assert TextFormatter().format(record) == text.strip()
    assert json.loads(JsonFormatter().format(record)) == json.loads(as_json)


def test_the_groups_to_paste_are_what_the_command_prints() -> None:
    (shown,) = (b.text for b in blocks(DOCS / "operate.md") if "$ kvbraid model" in b.text)
    command, _, output = shown.partition("\n")
    printed = CliRunner().invoke(cli, command.removeprefix("$ kvbraid ").split())
    assert printed.stdout == output


def test_the_names_of_models_are_listed() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert f"({', '.join(f'`{name}`' for name in CONFIGS)})" in page
