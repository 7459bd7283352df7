"""The dashboard of kvbraid for Grafana: rows of panels as data, written as kvbraid.json.

`python -m deploy.grafana.dashboard` writes the file anew, and a test compares. A panel says its
unit and what it shows; nothing else of Grafana's many options is set.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("kvbraid.json")

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph; `lines` are expressions, each with the name of its line.

    In an expression, `%` stands for the chosen instances, and `~` for the time of a rate.
    """

    title: str
    unit: str
    description: str
    lines: Sequence[tuple[str, str]]


ROWS: Final[dict[str, Sequence[Panel]]] = {
    "Pods": (
        Panel(
            "Ranks by state", "short",
            "Ranks whose history is known completely (exact), in part (degraded), is being read "
            "(rebuilding), or that are not connected (stale).",
            [("sum by (state) (kvbraid_pod_state{%})", "{{state}}")],
        ),
        Panel(
            "Requests in flight", "short",
            "Requests that were picked for a pod and have not ended.",
            [("sum by (pod) (kvbraid_running{%})", "{{pod}}")],
        ),
        Panel(
            "Batches of events", "cps",
            "Batches per second that were applied. An engine publishes at most one per step.",
            [("sum by (pod) (rate(kvbraid_messages_total{%}[~]))", "{{pod}}")],
        ),
        Panel(
            "Refused messages and events", "cps",
            "Refusals per second by reason; docs/events.md explains each.",
            [("sum by (pod, reason) (rate(kvbraid_refused_total{%}[~]))", "{{pod}} {{reason}}")],
        ),
    ),
    "Reuse": (
        Panel(
            "Prompts on the rungs of the ladder", "percentunit",
            "Share of all tokens of prompts that was ever seen, that the best rank had, that the "
            "chosen rank had, and that was delivered.",
            [(
                "sum by (rung) (rate("
                'kvbraid_ladder_tokens_total{%, rung=~"seen|best|chosen|delivered"}[~]))'
                ' / on () group_left sum(rate(kvbraid_ladder_tokens_total{%, rung="prompt"}[~]))',
                "{{rung}}",
            )],
        ),
        Panel(
            "Why not more is reused", "percentunit",
            "Share of all tokens of prompts between two rungs, by the reason; docs/ladder.md says "
            "what to do about each.",
            [(
                "sum by (gap, reason) (rate(kvbraid_ladder_gap_tokens_total{%}[~]))"
                ' / on () group_left sum(rate(kvbraid_ladder_tokens_total{%, rung="prompt"}[~]))',
                "{{gap}}: {{reason}}",
            )],
        ),
        Panel(
            "Promised and delivered", "percentunit",
            "Of prompts whose reuse was reported: what was promised (lower, upper), expected "
            "(resumable) and delivered. Delivered lies between lower and upper.",
            [(
                'sum by (tokens) (rate(kvbraid_pick_tokens_total{%, tokens!="prompt"}[~]))'
                ' / on () group_left sum(rate(kvbraid_pick_tokens_total{%, tokens="prompt"}[~]))',
                "{{tokens}}",
            )],
        ),
    ),
    "Requests": (
        Panel(
            "Picks", "reqps",
            "Picks per second, by whether events or only promises said what the chosen rank has.",
            [("sum by (knowledge) (rate(kvbraid_picks_total{%}[~]))", "{{knowledge}}")],
        ),
        Panel(
            "Picks with ranks left out", "reqps",
            "Picks per second in which a filter has left out ranks, or was lifted because nobody "
            "else was left.",
            [(
                "sum by (filter, effect) (rate(kvbraid_pick_filters_total{%}[~]))",
                "{{filter}} {{effect}}",
            )],
        ),
        Panel(
            "Bookings and promises", "short",
            "Requests in flight on all pods, and prompts that count as cached before events tell.",
            [
                ("sum(kvbraid_bookings{%})", "bookings"),
                ("sum(kvbraid_promises{%})", "promises"),
            ],
        ),
        Panel(
            "Bookings that ended otherwise", "cps",
            "What happened to bookings per second, besides reports of their end.",
            [(
                'sum by (what) (rate(kvbraid_pick_bookings_total{%, what!~"fit_.*"}[~]))',
                "{{what}}",
            )],
        ),
        Panel(
            "Requests through the gateway", "reqps",
            "Requests per second by how they ended (kvbraid route).",
            [("sum by (outcome) (rate(kvbraid_gateway_requests_total{%}[~]))", "{{outcome}}")],
        ),
        Panel(
            "In the gateway", "short",
            "Requests that are being served, and those that wait for room (kvbraid route).",
            [
                ("sum(kvbraid_gateway_in_flight{%})", "in flight"),
                ("sum(kvbraid_gateway_queue{%})", "waiting"),
            ],
        ),
    ),
    "Server": (
        Panel(
            "Memory of the index", "bytes",
            "What the index accounts for, and its limit. At the limit it forgets what was least "
            "recently matched.",
            [
                ("sum(kvbraid_memory_bytes{%})", "used"),
                ("sum(kvbraid_memory_limit_bytes{%}) < +Inf", "limit"),
            ],
        ),
        Panel(
            "Time of a score", "s",
            "From the whole body of POST /v1/score to its answer.",
            [
                (
                    f"histogram_quantile({share},"
                    " sum by (le) (rate(kvbraid_score_seconds_bucket{%}[~])))",
                    name,
                )
                for share, name in (("0.5", "median"), ("0.99", "99 %"))
            ],
        ),
        Panel(
            "Answers over HTTP", "reqps",
            "Requests per second by status.",
            [("sum by (status) (rate(kvbraid_http_requests_total{%}[~]))", "{{status}}")],
        ),
        Panel(
            "Requests that reached no route", "cps",
            "Requests and connections per second that were refused or given up, by reason.",
            [("sum by (reason) (rate(kvbraid_http_refused_total{%}[~]))", "{{reason}}")],
        ),
        Panel(
            "Bodies in memory", "bytes",
            "Request bodies that are arriving or being answered; limits.bodies_bytes bounds them.",
            [("sum(kvbraid_http_bodies_bytes{%})", "bodies")],
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "kvbraid",
        "title": "kvbraid",
        "schemaVersion": 39,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_SOURCES, _INSTANCES]},
        "panels": _panels(),
    }


_SOURCES: Final = {"name": "source", "type": "datasource", "query": "prometheus"}
_INSTANCES: Final = {
    "name": "instance",
    "type": "query",
    "datasource": _SOURCE,
    "query": "label_values(kvbraid_build_info, instance)",
    "refresh": 2,  # When the time range changes.
    "includeAll": True,
    "multi": True,
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for title, panels in ROWS.items():
        made.append({"type": "row", "title": title, "gridPos": _place(top, 0, _COLUMNS, 1)})
        top += 1
        for at in range(0, len(panels), 3):
            line = panels[at : at + 3]
            width = _COLUMNS // len(line)
            for number, panel in enumerate(line):
                made.append(_graph(panel, _place(top, number * width, width, _HEIGHT)))
            top += _HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(made, start=1)]


def _place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    return {"y": top, "x": left, "w": width, "h": height}


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": _filled(expression),
                "legendFormat": name,
            }
            for number, (expression, name) in enumerate(panel.lines)
        ],
    }


def _filled(expression: str) -> str:
    chosen = expression.replace("%", 'instance=~"$instance"')
    return chosen.replace("[~]", "[$__rate_interval]")


if __name__ == "__main__":
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
