"""The house rules that no linter knows: sizes, names, docstrings, who wraps the native core.

Each rule is a function from the tree to a list of violations, and the test says that the list is
empty. The rules are those of CONTRIBUTING.md; layers are checked by import-linter.
"""

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

import kvbraid
import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "python" / "kvbraid"

MAX_LINES: Final = 600  # Aim for 300.
MAX_LINES_OF_A_TEST: Final = 1_000
MAX_LINES_OF_A_BINDING: Final = 500
NAMELESS_MODULES: Final = frozenset({"utils.py", "helpers.py", "common.py", "misc.py"})

NATIVE_WRAPPERS: Final = frozenset(
    {
        "__init__.py",
        "cache/debug.py",
        "cache/events.py",
        "cache/manager.py",
        "cache/pool.py",
        "events/digest.py",
        "events/wire.py",
        "fleet/answer.py",
        "fleet/index.py",
        "hashing.py",
        "resume.py",
        "service/requests.py",
    }
)
"""The only modules that may import `kvbraid._native`; callers of these cannot tell."""

# Put together from parts, so that this file does not contain what it looks for.
MACHINE_PATH: Final = re.compile(
    "/(?:" + "|".join(("tmp/bash_jobs", "work", "farm", "root")) + ")/"
)
AMBIGUOUS_DIRECTION: Final = re.compile(r"\bbe" + r"hind\b", re.IGNORECASE)
"""It means "before" to some readers and "after" to others: say which."""
DOWNLOAD_ADDRESS: Final = re.compile(r"https?://\S+\.(?:whl|crate|tar\.gz)\b")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file of the repository that git knows or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listing.stdout.decode().split("\0")
    return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))


def sources(suffix: str, *, under: str = "") -> Iterator[Path]:
    return (
        path
        for path in tracked_files()
        if path.suffix == suffix and path.relative_to(ROOT).as_posix().startswith(under)
    )


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def line_limit(path: Path) -> int:
    name = name_of(path)
    if name.startswith("crates/python/"):
        return MAX_LINES_OF_A_BINDING
    is_test = name.startswith("tests/") or "/tests/" in name or path.stem.endswith("tests")
    return MAX_LINES_OF_A_TEST if is_test else MAX_LINES


def too_long_files() -> Iterator[str]:
    for path in (*sources(".py"), *sources(".rs")):
        count = len(path.read_text().splitlines())
        if count > line_limit(path):
            yield f"{name_of(path)}: {count} lines, at most {line_limit(path)}; split at a seam"


def nameless_modules() -> Iterator[str]:
    for path in (*sources(".py"), *sources(".rs")):
        if path.with_suffix(".py").name in NAMELESS_MODULES:
            yield f"{name_of(path)}: name it after what it holds"


def modules_without_docstring() -> Iterator[str]:
    for path in sources(".py"):
        text = path.read_text()
        if text and not ast.get_docstring(ast.parse(text)):
            yield f"{name_of(path)}: open with what it holds, its law, what it never does"
    for path in sources(".rs"):
        if "/src/" in name_of(path) and not path.read_text().startswith("//!"):
            yield f"{name_of(path)}: open with a //! comment"


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stray_native_imports() -> Iterator[str]:
    for path in sources(".py", under="python/"):
        inside = path.relative_to(PACKAGE).as_posix()
        uses_native = any(name.startswith("kvbraid._native") for name in imports_of(path))
        if uses_native and inside not in NATIVE_WRAPPERS:
            yield f"{name_of(path)}: only {sorted(NATIVE_WRAPPERS)} wrap the native core"


def native_names() -> Iterator[str]:
    stub = ast.parse((PACKAGE / "_native.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.FunctionDef) or is_constructible(node):
            yield node.name


def is_constructible(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    """Whether Python code can make one; a class that only holds an answer cannot be made."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(member, ast.FunctionDef) and member.name in {"__new__", "__init__"}
        for member in node.body
    )


def native_names_without_differential_test() -> Iterator[str]:
    texts = [path.read_text() for path in sources(".py", under="tests/differential/")]
    for name in native_names():
        word = re.compile(rf"\b{name}\b")
        if not any(word.search(text) for text in texts):
            yield f"_native.{name}: no file of tests/differential names it"


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""  # Compressed captures and golden bytes.


def lines_matching(pattern: re.Pattern[str]) -> Iterator[str]:
    for path in tracked_files():
        if path.name == "Cargo.lock":
            continue  # Its registry source is an identifier that cargo itself writes.
        for number, line in enumerate(text_of(path).splitlines(), start=1):
            if pattern.search(line):
                yield f"{name_of(path)}:{number}: {line.strip()[:100]}"


def machine_paths() -> Iterator[str]:
    return lines_matching(MACHINE_PATH)


def download_addresses() -> Iterator[str]:
    return lines_matching(DOWNLOAD_ADDRESS)


def ambiguous_directions() -> Iterator[str]:
    return lines_matching(AMBIGUOUS_DIRECTION)


@pytest.mark.parametrize(
    "rule",
    [
        too_long_files,
        nameless_modules,
        modules_without_docstring,
        stray_native_imports,
        native_names_without_differential_test,
        machine_paths,
        download_addresses,
        ambiguous_directions,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_tree_has_no(rule: Callable[[], Iterator[str]]) -> None:
    assert list(rule()) == []


def test_the_package_under_test_is_the_one_the_run_claims_to_test() -> None:
    """`make test` sets KVBRAID_TESTED=wheel; by hand, the editable install is tested."""
    imported_from_tree = Path(kvbraid.__file__).resolve().is_relative_to(ROOT / "python")
    assert imported_from_tree == (os.environ.get("KVBRAID_TESTED") != "wheel")


def test_a_rule_of_this_file_sees_a_violation(tmp_path: Path) -> None:
    stray = tmp_path / "stray.py"
    stray.write_text("from kvbraid._native import decode\nimport kvbraid._native\n")
    assert list(imports_of(stray)) == ["kvbraid._native.decode", "kvbraid._native"]
    assert MACHINE_PATH.search("see /" + "work/notes")
    assert DOWNLOAD_ADDRESS.search("https" + "://host/a-1.0.whl")
