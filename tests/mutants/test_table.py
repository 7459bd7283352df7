"""The table of mutants stays valid: each text occurs once, tests exist, the page lists all.

`make mutants`, which takes minutes, shows that the tests kill them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.mutant import Edit, Mutant
from tests.mutants.of_mover import OF_MOVER
from tests.mutants.of_offload import OF_OFFLOAD
from tests.mutants.of_operating import OF_OPERATING
from tests.mutants.of_records import OF_RECORDS
from tests.mutants.of_retention import OF_RETENTION
from tests.mutants.of_routing import OF_ROUTING
from tests.mutants.of_tiers import OF_TIERS
from tests.mutants.pytest_report import kinds
from tests.mutants.table import MUTANTS, OF_RECOVERY, OF_THE_STUDY

ROOT: Final = Path(__file__).resolve().parents[2]
EDITS: Final = [(mutant.name, edit) for mutant in MUTANTS for edit in mutant.edits]
TESTS: Final = sorted({node for mutant in MUTANTS for node in mutant.killed_by})


def test_there_are_so_many_of_each_table() -> None:
    assert (len(OF_THE_STUDY), len(OF_RECOVERY)) == (9, 16)
    assert (len(OF_RETENTION), len(OF_ROUTING)) == (19, 11)
    assert (len(OF_TIERS), len(OF_MOVER)) == (2, 3)
    assert (len(OF_RECORDS), len(OF_OFFLOAD)) == (4, 8)
    assert len(OF_OPERATING) == 11
    assert len(MUTANTS) == 99
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1


@pytest.mark.parametrize(
    "edit", [edit for _, edit in EDITS], ids=[f"{name}-{Path(e.file).stem}" for name, e in EDITS]
)
def test_what_a_mutant_replaces_is_there_once(edit: Edit) -> None:
    text = (ROOT / edit.file).read_text()
    assert text.count(edit.text) == 1, f"{edit.file} has changed: look at it and mend the table"
    assert edit.instead != edit.text


@cache
def names_in(file: str) -> frozenset[str]:
    """What a test file defines at its top: functions, classes and what is assigned."""
    return frozenset(_names(ast.parse((ROOT / file).read_text())))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("node", TESTS)
def test_a_test_that_kills_exists(node: str) -> None:
    file, _, name = node.partition("::")
    assert name in names_in(file)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_page_lists_the_mutant_and_its_tests(mutant: Mutant) -> None:
    assert row(mutant) in Path(__file__).with_name("README.md").read_text().splitlines()


def row(mutant: Mutant) -> str:
    names = (node.partition("::") for node in mutant.killed_by)
    tests = ", ".join(f"`{Path(file).stem}::{name}`" for file, _, name in names)
    return f"| `{mutant.name}` | {mutant.breaks} | {tests} |"


def test_the_kinds_of_an_exception_are_those_of_its_parts() -> None:
    group = ExceptionGroup("both", [AssertionError(), ExceptionGroup("one", [KeyError()])])
    assert list(kinds(group)) == ["AssertionError", "KeyError"]
    assert list(kinds(ValueError())) == ["ValueError"]
