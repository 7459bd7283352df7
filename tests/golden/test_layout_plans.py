"""Whole plans of five worked models as files: what they say changes only on purpose.

A fingerprint is in every block that was ever written elsewhere, so one that changes is a change of
format. `python -m tests.golden.test_layout_plans` writes the files anew.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.layout import (
    Layout,
    MemoryPlan,
    PlanOptions,
    fingerprint,
    from_json,
    plan_memory,
    to_json,
)

from tests.golden.layout_models import CASES, sparse

HERE: Final = Path(__file__).parent / "layout" / "plans"


def worked(case: str) -> Callable[[], MemoryPlan]:
    groups, options = CASES[case]
    return lambda: plan_memory(groups(), num_blocks=4, options=options)


PLANS: Final[Mapping[str, Callable[[], MemoryPlan]]] = {
    "padded-attention": worked("padded attention"),
    "two-block-sizes": worked("two block sizes, one page size"),
    "gpt-oss-20b-tp2-heads-first": worked("gpt-oss-20b on two ranks, heads first"),
    "jamba-v0.1": worked("jamba-v0.1"),
    "sparse-attention-packed": lambda: plan_memory(
        sparse(Layout.BLNHC), options=PlanOptions(packed=True)
    ),
}
FINGERPRINTS: Final = {
    "gpt-oss-20b-tp2-heads-first": "a0bbf8765503ed752956bea03a0ad22a",
    "jamba-v0.1": "ebf16684309738119cc6a5480835c893",
    "padded-attention": "a6d6399e9c0fb9cc2a20bfda4d20fea3",
    "sparse-attention-packed": "41e6d78b7e50962938e7f9171b2f651b",
    "two-block-sizes": "458641877dd9b98a0030c9fe67c1d64e",
}


def text_of(document: Mapping[str, Any]) -> str:
    """Write a document with a line for each buffer, group and view."""
    lines = []
    for name, value in document.items():
        if name in ("buffers", "groups"):
            rows = ",\n  ".join(json.dumps(each) for each in value)
            lines.append(f'"{name}": [\n  {rows}\n ]')
        elif name == "views":
            rows = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value[key])}" for key in value)
            lines.append(f'"{name}": {{\n  {rows}\n }}')
        else:
            lines.append(f'"{name}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_what_its_file_says(name: str) -> None:
    text = (HERE / f"{name}.json").read_text()
    plan = PLANS[name]()
    assert to_json(plan) == json.loads(text)
    assert text_of(to_json(plan)) == text
    assert from_json(json.loads(text)) == plan


@pytest.mark.parametrize("name", PLANS)
def test_the_fingerprint_of_a_worked_model_stays(name: str) -> None:
    assert fingerprint(PLANS[name]()) == FINGERPRINTS[name]


def test_every_file_has_a_plan() -> None:
    assert {path.stem for path in HERE.glob("*.json")} == set(PLANS) == set(FINGERPRINTS)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each, plan in PLANS.items():
        (HERE / f"{each}.json").write_text(text_of(to_json(plan())))
