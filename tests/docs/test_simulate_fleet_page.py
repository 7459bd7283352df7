"""The tables and figures of docs/simulate-fleet.md are those of the code."""

import re
from pathlib import Path

from kvbraid.report.routing import COLUMNS
from kvbraid.sim.routing.pace import H100
from kvbraid.sim.routing.workloads import KINDS, TRACE_OUTPUTS

TEXT = (Path(__file__).parents[2] / "docs" / "simulate-fleet.md").read_text(encoding="utf-8")


def listed(section: str) -> list[str]:
    """Return the first cells of a section's table."""
    text = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| (.*?) \| [^|]*\|$", text, re.MULTILINE)[1:]


def test_the_workloads_are_those_of_the_code() -> None:
    assert listed("Traffic") == [f"`{name}`" for name in KINDS]


def test_the_columns_are_those_of_the_table() -> None:
    assert ", ".join(listed("What it prints")) == ", ".join(column.name for column in COLUMNS)


def test_the_figures_in_the_text_are_the_constants() -> None:
    assert f"have {TRACE_OUTPUTS}\ntokens" in TEXT
    assert (H100.flops, H100.bandwidth) == (0.45 * 989.5e12, 0.8 * 3.35e12)
    assert "at 45 % of its peak" in TEXT
    assert "at 80 % of the bandwidth" in TEXT
