"""docs/glossary.md: its pairs are those that the code makes, and every guide leads to it."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from kvbraid.cache import CacheManager
from kvbraid.cache.pool import BlockPool

from tests.docs.markdown import ROOT, local_links

GLOSSARY: Final = ROOT / "docs" / "glossary.md"
VLLM: Final = ROOT / "python" / "kvbraid" / "integrations" / "vllm"
GUIDES: Final = sorted(
    {*ROOT.glob("docs/*.md"), *ROOT.glob("docs/engines/*.md"), ROOT / "README.md"} - {GLOSSARY}
)
MADE_ELSEWHERE: Final = {"take_work", "reset"}
"""Calls that the manager makes through a module of its own."""


def pairs() -> list[tuple[list[str], list[str]]]:
    """The names in the first two columns of the table of engines, row by row."""
    table = GLOSSARY.read_text().split("\n## kvbraid, vLLM and SGLang\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    named = [tuple(re.findall(r"`([\w.]+)[^`]*`", cell) for cell in row[:2]) for row in rows[1:]]
    return [(ours, theirs) for ours, theirs in named if ours and theirs]


def methods_of_vllms_manager() -> dict[str, str]:
    """What each method that vLLM calls is in our code."""
    texts = [path.read_text() for path in sorted(VLLM.rglob("*.py"))]
    (manager,) = (
        (text, node)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name == "KvbraidCacheManager"
    )
    text, node = manager
    return {
        method.name: ast.get_source_segment(text, method) or ""
        for method in node.body
        if isinstance(method, ast.FunctionDef)
    }


def test_a_method_of_vllm_is_served_by_the_call_beside_it() -> None:
    methods = methods_of_vllms_manager()
    calls = [(ours[0], name) for ours, theirs in pairs() for name in theirs if name in methods]
    assert len(calls) >= 12
    for ours, name in calls:
        owner = BlockPool if ours.startswith("pool.") else CacheManager
        assert hasattr(owner, ours.removeprefix("pool.")), ours
        _, _, body = methods[name].partition(":\n")
        assert ours in MADE_ELSEWHERE or f".{ours}(" in body, f"{name} does not call {ours}"


def test_every_other_word_of_vllm_is_one_that_the_integration_uses() -> None:
    text = "".join(path.read_text() for path in VLLM.rglob("*.py"))
    for ours, theirs in pairs():
        missing = [name for name in theirs if not re.search(rf"\b{name}\b", text)]
        assert missing == [], ours


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_guide_leads_to_the_glossary(page: Path) -> None:
    assert GLOSSARY in {(page.parent / link).resolve() for link in local_links(page)}
