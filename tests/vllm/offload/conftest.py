"""Prints what came of engines that offload: one line at column 0, for programs."""

import json
from collections import Counter
from typing import Any, Final

import pytest

SEEN: Final[dict[tuple[str, str], Counter[str]]] = {}
"""What live tests counted, by model and layout."""


def pytest_terminal_summary(terminalreporter: Any) -> None:  # noqa: ANN401 - pytest's own type.
    if not SEEN:
        return
    total: Counter[str] = sum(SEEN.values(), Counter())
    keys = ("requests", "loaded_blocks", "byte_mismatches", "mismatches", "near_ties")
    line: dict[str, Any] = {
        "models": sorted({model for model, _ in SEEN}),
        "layouts": sorted({layout for _, layout in SEEN}),
    }
    line |= {key: total[key] for key in keys}
    line["control_changed"] = f"{total['control_changed']}/{total['control']}"
    line["predicted"] = f"{total['predicted']}/{total['asked']}"
    last = ("second_engine_hits", "hit_tokens", "rival_hit_tokens", "moved", "rival_moved")
    line |= {key: total[key] for key in last}
    terminalreporter.write_line(json.dumps({"offload": line}))


@pytest.fixture
def seen() -> dict[tuple[str, str], Counter[str]]:
    return SEEN
