"""docs/api.md against the code: routes, fields, error codes."""

import re
from pathlib import Path

import msgspec
import pytest
from kvbraid.service.answers import (
    ConfigAnswer,
    DrawnGroup,
    DrawnRow,
    ExplainGroup,
    ExplainRow,
    Fallback,
    FitAnswer,
    KeyRow,
    LadderInterval,
    MissingBlocks,
    PickAnswer,
    PickCandidate,
    PodRow,
    PodsAnswer,
    RecentRequest,
    RefusedConfig,
    ScoreAnswer,
)
from kvbraid.service.config import PodBody
from kvbraid.service.errors import ERRORS
from kvbraid.service.http.routes import ROUTES
from kvbraid.service.picking import MOST_FALLBACKS
from kvbraid.service.requests import PickBody, ReportBody, RoutedBody, ScoreBody

from tests.docs.markdown import codes, tables

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_route_table_is_the_applications() -> None:
    listed = re.findall(r"^\| `([A-Z]+) (/\S*)` \|", TEXT, re.MULTILINE)
    assert listed == [(route.method, route.path) for route in ROUTES if not route.is_page]


def test_the_error_table_is_the_codes() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \|$", section("Errors"), re.MULTILINE)
    assert {code: int(status) for code, status in listed} == {
        code: kind.status for code, kind in ERRORS.items()
    }


@pytest.mark.parametrize(
    ("title", "struct"),
    [
        ("Score and explain", ScoreBody),
        ("Score and explain", ExplainGroup),
        ("Routed requests", RoutedBody),
        ("Picks", PickBody),
        ("Picks", ReportBody),
        ("Picks", PickAnswer),
        ("Picks", PickCandidate),
        ("Picks", Fallback),
        ("Picks", FitAnswer),
        ("Pods", PodBody),
        ("Pods", PodRow),
        ("Pods", PodsAnswer),
        ("What the console reads", DrawnGroup),
        ("What the console reads", DrawnRow),
        ("What the console reads", LadderInterval),
        ("What the console reads", MissingBlocks),
        ("What the console reads", RecentRequest),
        ("Configuration", ConfigAnswer),
        ("Configuration", KeyRow),
        ("Configuration", RefusedConfig),
    ],
)
def test_every_field_is_described(title: str, struct: type[msgspec.Struct]) -> None:
    missing = [name for name in struct.__struct_fields__ if f"`{name}`" not in section(title)]
    assert missing == []


def test_the_number_of_fallbacks_is_the_servers() -> None:
    assert f"| `fallbacks` | at most {MOST_FALLBACKS} further ranks" in section("Picks")


def test_explain_rows_are_described() -> None:
    explained = section("Score and explain").split("`explain` answers")[1]
    own = set(ExplainRow.__struct_fields__) - {"pod", "dp_rank", "state"}
    assert [name for name in sorted(own) if f"`{name}`" not in explained] == []


def test_the_example_answer_has_the_fields_of_the_answer() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    answer = msgspec.json.decode(example, type=ScoreAnswer)
    assert msgspec.to_builtins(answer) == msgspec.json.decode(example)


def test_the_right_of_each_route_is_in_the_table() -> None:
    listed = re.findall(
        r"^\| `[A-Z]+ /\S*` \| .* \| (?:`(\w+)`)? ?\| [^|]*\|$", TEXT, re.MULTILINE
    )
    assert listed == [route.right or "" for route in ROUTES if not route.is_page]


def test_the_page_of_replicas_says_what_a_front_does_at_each_route() -> None:
    told = [first for row in tables("replicas.md", "Many shards")[1] for first in codes(row[0])]
    routes = [f"{route.method} {route.path}" for route in ROUTES if not route.is_page]
    assert sorted(told) == sorted(routes)
