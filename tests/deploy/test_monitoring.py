"""deploy/prometheus and deploy/grafana: what they name is exported, and each alert fires."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.grafana.dashboard import FILE, dashboard
from tests.deploy.scraped import scrape
from tests.docs.markdown import DOCS, ROOT, firsts, tables

FOLDER: Final = ROOT / "deploy" / "prometheus"
RULES: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS: Final = {rule["alert"]: rule for rule in RULES if "alert" in rule}
CASES: Final[list[dict[str, Any]]] = yaml.safe_load((FOLDER / "rules_test.yml").read_text())[
    "tests"
]
GRAPHS: Final = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]

PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")

TARGET: Final = frozenset({"instance", "job"})
"""Labels that Prometheus gives to whatever it scrapes."""

_SELECTOR: Final = re.compile(r"\b((?:\w+:)?kvbraid_[\w:]+)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")
_SHOWN_LABEL: Final = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]\w*)\s*\}\}")


@dataclass(frozen=True)
class Shown:
    """An expression of a file, and the text that is shown of its result."""

    where: str
    expression: str
    text: str = ""


def shown() -> Iterator[Shown]:
    for rule in RULES:
        text = rule.get("annotations", {}).get("summary", "")
        yield Shown(rule.get("alert") or rule["record"], rule["expr"], text)
    for graph in GRAPHS:
        for line in graph["targets"]:
            plain = line["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            yield Shown(f"{graph['title']} {line['refId']}", plain, line["legendFormat"])


EXPRESSIONS: Final = list(shown())

Exported = dict[str, dict[str, set[str]]]
"""By the name of a metric and of a label: the values that were seen, or can be."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return asyncio.run(asyncio.wait_for(scrape(tmp_path_factory.mktemp("scraped")), 60))


@pytest.fixture(scope="module")
def exported(text: str) -> Exported:
    found: Exported = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    for heading in ("Refused by the decoder", "Counted by the index", "Counted by the feed"):
        (table,) = tables("events.md", heading)
        found["kvbraid_refused_total"]["reason"].update(firsts(table))
    return found


def labels_of(name: str, exported: Exported) -> set[str]:
    """Return the labels of a series; the name of a recorded one begins with its own."""
    level, colon, _ = name.partition(":")
    if colon:
        assert name in [rule.get("record") for rule in RULES], name
        return set(level.split("_"))
    assert name in exported, f"{name} is not exported"
    return set(exported[name])


def unknown_in(expression: str, exported: Exported) -> Iterator[str]:
    """The labels and values that no series has which the expression names."""
    all_labels = set(TARGET)
    for name, matchers in _SELECTOR.findall(expression):
        labels = labels_of(name, exported) | TARGET
        all_labels |= labels
        for label, _, pattern in _MATCHER.findall(matchers):
            if label not in labels:
                yield f"{name} has no label {label}"
            values = exported.get(name, {}).get(label)
            for choice in pattern.split("|") if values else ():
                if not any(re.fullmatch(choice, value) for value in values or ()):
                    yield f"{name}: {label} is never {choice}"
    for grouping in _GROUPING.findall(expression):
        for label in re.findall(r"\w+", grouping):
            if label not in all_labels:
                yield f"nothing has a label {label}"


@pytest.mark.parametrize("one", EXPRESSIONS, ids=lambda one: one.where)
def test_what_rules_and_panels_name_is_exported(one: Shown, exported: Exported) -> None:
    assert "kvbraid_" in one.expression
    assert list(unknown_in(one.expression, exported)) == []
    names = [name for name, _ in _SELECTOR.findall(one.expression)]
    has = set().union(*(labels_of(name, exported) for name in names))
    assert set(_SHOWN_LABEL.findall(one.text)) - has == set()


def test_a_name_a_label_or_a_value_that_is_not_exported_is_found(exported: Exported) -> None:
    with pytest.raises(AssertionError, match="is not exported"):
        list(unknown_in("sum(kvbraid_nothing)", exported))
    wrong = 'sum by (rank) (kvbraid_pod_state{model="m", state="gone"})'
    assert list(unknown_in(wrong, exported)) == [
        "kvbraid_pod_state has no label model",
        "kvbraid_pod_state: state is never gone",
        "nothing has a label rank",
    ]


def test_the_series_of_the_cases_are_ones_that_kvbraid_exports(exported: Exported) -> None:
    for case in CASES:
        for series in case["input_series"]:
            (name, given), *more = _SELECTOR.findall(series["series"])
            assert not more
            labels = {label for label, _, _ in _MATCHER.findall(given)}
            assert labels - TARGET == labels_of(name, exported), series


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    cases = [one for case in CASES for one in case["alert_rule_test"] if one["alertname"] == name]
    assert {bool(one.get("exp_alerts")) for one in cases} == {True, False}


def test_each_alert_has_a_remedy_and_each_remedy_an_alert() -> None:
    page = (DOCS / "operate.md").read_text()
    section = page.split("\n## Each alert and its remedy\n")[1].split("\n## ")[0]
    headings = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    assert headings == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/operate.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_a_pod_without_events_and_an_index_with_a_limit_are_told_apart(text: str) -> None:
    lines = text.splitlines()
    assert 'kvbraid_pod_publishes{dp_rank="0",pod="a"} 1.0' in lines
    assert 'kvbraid_pod_publishes{dp_rank="0",pod="without-events"} 0.0' in lines
    assert "kvbraid_memory_limit_bytes 1e+09" in lines


def test_the_dashboard_is_what_its_module_writes() -> None:
    assert json.loads(FILE.read_text()) == dashboard()


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph["title"])
def test_each_panel_has_a_unit_and_says_what_it_shows(graph: dict[str, Any]) -> None:
    assert graph["fieldConfig"]["defaults"]["unit"]
    assert graph["description"].endswith(".")
    assert graph["title"] not in [other["title"] for other in GRAPHS if other is not graph]


def promtool(*arguments: str | Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_rules() -> None:
    promtool("check", "rules", FOLDER / "rules.yml")


@needs_promtool
def test_the_alerts_fire_in_their_cases_and_not_otherwise() -> None:
    promtool("test", "rules", FOLDER / "rules_test.yml")


@needs_promtool
def test_a_panel_shows_something_of_a_running_gateway(text: str, tmp_path: Path) -> None:
    series = [
        {"series": _series(sample.name, sample.labels), "values": f"{sample.value}x10"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    panels = [one for one in EXPRESSIONS if one.where not in ALERTS]
    asked = [
        {
            "expr": f"count({one.expression}) > bool 0",
            "eval_time": "10m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for one in panels
    ]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    cases = tmp_path / "cases.yml"
    cases.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "rules.yml")], "tests": [case]}))
    promtool("test", "rules", cases)


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ", ".join(f'{key}="{value}"' for key, value in {**labels, "instance": "i"}.items())
    return f"{name}{{{inside}}}"
