"""The house rules that no linter knows: sizes, names, docstrings, who wraps the native core.

Each rule is a function from the tree to a list of violations, and the test says that the list is
empty. The rules are those of CONTRIBUTING.md; import-linter checks the layers of the package.
"""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, TypeGuard

import kvbraid
import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "python" / "kvbraid"

MAX_LINES_OF_CODE: Final = {"python/": 450, "crates/core/src/": 450, "crates/python/": 450}
"""The longest file of a folder, without its docs; a file of any other folder, with them: 600."""
MAX_LINES_ELSEWHERE: Final = 600
MAX_LINES_OF_A_TEST: Final = 1_000
LONG_FILES: Final = frozenset({"crates/core/src/wire/cursor.rs"})
"""A reader of one format: to split it would hide its order."""
NAMELESS_MODULES: Final = frozenset({"utils.py", "helpers.py", "common.py", "misc.py"})

NATIVE_WRAPPERS: Final = frozenset(
    {
        "__init__.py",
        "cache/debug.py",
        "cache/events.py",
        "cache/manager.py",
        "cache/pool.py",
        "cache/tables.py",
        "cache/tiers.py",
        "events/digest.py",
        "events/wire.py",
        "fleet/answer.py",
        "fleet/index.py",
        "fleet/registration.py",
        "hashing.py",
        "recovery/decision/assess.py",
        "resume.py",
        "service/requests.py",
    }
)
"""The only modules that may import `kvbraid._native`; callers of these cannot tell."""

Module = tuple[str, ...]
CORE: Final = ROOT / "crates" / "core" / "src"
USE_DECLARATION: Final = re.compile(r"^(?:pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
INNERMOST_BRACES: Final = re.compile(r"([\w:]*::)\{([^{}]*)\}")
LISTED_MODULE: Final = re.compile(r"^//! - `(\w+)`: ", re.MULTILINE)
NAMED_IN_A_MAP: Final = re.compile(r"^ *(\w+)/? {2,}|`(\w+)/?`", re.MULTILINE)
NAMED_IN_RUST: Final = re.compile(r"[`\[](?:crate::)?(\w+)[`\]]")
LAYERS_OF_THE_CORE: Final = (
    ("cache", "adaptive"),
    ("cache::retention", "cache::step", "cache::by_hand", "cache::going_back"),
)
"""From the bottom up: a module of the core takes no name from a later one of its row."""

MOST_FILES_OF_A_TYPE: Final = 6
"""The files in which the methods of one type of the core stand: more, and nobody finds one."""
INHERENT_IMPL: Final = re.compile(r"^impl(?:<.*?>)? (\w+)(?:<.*>)? \{$", re.MULTILINE)

TYPE_IN_RUST: Final = re.compile(
    r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) (\w+)", re.MULTILINE
)
TYPE_IN_PYTHON: Final = re.compile(
    r"^ *class (\w+)|^(\w+): TypeAlias = |^(_?[A-Z]\w*[a-z]) = \w+\[", re.MULTILINE
)
DEFINED_TWICE: Final = frozenset({("crates/core/src/", "State")})
"""Names that two modules of a crate or of the package give to a type: this list only shrinks."""

# Put together from parts, so that this file does not contain what it looks for.
MACHINE_PATH: Final = re.compile(
    "/(?:" + "|".join(("tmp/bash_jobs", "work", "farm", "root")) + ")/"
)
AMBIGUOUS_DIRECTION: Final = re.compile(r"\bbe" + r"hind\b", re.IGNORECASE)
"""It means "before" to some readers and "after" to others: say which."""
CLOCK: Final = re.compile(r"^(?:import|from) (?:time|timeit)\b", re.MULTILINE)
WAITING_TESTS: Final = ("tests/service/", "tests/vllm/")
"""These wait for other processes. All other tests run beside each other and assert no time."""
PRIVATE_WORD: Final = re.compile(
    "|".join(
        rf"\b{start}{end}"
        for start, end in (
            ("le", r"an(s|ing|t)?\b"), ("sh", r"adows?\b"), ("co", r"urts?\b"),
            ("do", r"ors?\b"), ("la", "w:"),
        )
    ),
    re.IGNORECASE,
)  # fmt: skip
"""Words of our own, which gave way to those that every engineer uses (docs/glossary.md)."""
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


def lines_of_code(name: str, text: str) -> int:
    """The lines that are neither blank nor a comment nor a docstring."""
    lines = text.splitlines()
    if name.endswith(".rs"):
        return sum(bool(line.strip()) and not line.lstrip().startswith("//") for line in lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and is_text(node.value):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def too_long_files() -> Iterator[str]:
    for path in (*sources(".py"), *sources(".rs")):
        name, text = name_of(path), path.read_text()
        is_test = name.startswith("tests/") or "/tests/" in name or path.stem.endswith("tests")
        limits = (most for folder, most in MAX_LINES_OF_CODE.items() if name.startswith(folder))
        limit = None if is_test or name in LONG_FILES else next(limits, None)
        if limit is not None:
            count, what = lines_of_code(name, text), "lines of code"
        else:
            count, what = len(text.splitlines()), "lines"
            limit = MAX_LINES_OF_A_TEST if is_test else MAX_LINES_ELSEWHERE
        if count > limit:
            yield f"{name}: {count} {what}, at most {limit}; split at a seam"


def nameless_modules() -> Iterator[str]:
    for path in (*sources(".py"), *sources(".rs")):
        if path.with_suffix(".py").name in NAMELESS_MODULES:
            yield f"{name_of(path)}: name it after what it holds"


def modules_without_docstring() -> Iterator[str]:
    for path in sources(".py"):
        text = path.read_text()
        if text and not ast.get_docstring(ast.parse(text)):
            yield f"{name_of(path)}: open with what it holds, its invariant, what it never does"
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


def helpers_in_test_modules() -> Iterator[str]:
    for path in sources(".py"):
        for name in imports_of(path):
            if name.startswith("tests.") and ".test_" in name:
                yield f"{name_of(path)}: {name}: move it to a module without tests"


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


def uses_of(text: str) -> Iterator[list[str]]:
    """The paths of a Rust file's `use` declarations, braces multiplied out."""
    for declaration in USE_DECLARATION.findall(text):
        tree = declaration
        while braces := INNERMOST_BRACES.search(tree):
            names = (name.strip() for name in braces[2].split(","))
            paths = ", ".join(braces[1] + name for name in names if name)
            tree = tree[: braces.start()] + paths + tree[braces.end() :]
        for path in tree.split(","):
            yield path.strip().split("::")


def uses_of_siblings(module: Module, text: str, modules: Collection[Module]) -> Iterator[Module]:
    """The modules that a module of the core takes names from, but for itself and its parents."""
    for first, *rest in uses_of(text):
        base = {"crate": (), "self": module, "super": module[:-1]}.get(first, (*module, first))
        num_supers = sum(name == "super" for name in rest)
        path = (*base[: len(base) - num_supers], *rest[num_supers:])
        found = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in modules), module)
        if module[: len(found)] != found:
            yield found


def modules_of_the_core() -> dict[Module, str]:
    texts = {
        path.relative_to(CORE).with_suffix("").parts: path.read_text()
        for path in sources(".rs", under="crates/core/src/")
    }
    return {tuple(p for p in parts if p != "mod"): text for parts, text in texts.items()}


def imports_against_the_reading_order() -> Iterator[str]:
    """Folders of `fleet` and `wire` list their modules; each takes names from those below it."""
    texts = modules_of_the_core()
    maps = {module: LISTED_MODULE.findall(text) for module, text in texts.items()}
    for folder, listed in maps.items():
        inside = {m[: len(folder) + 1] for m in texts if m[: len(folder)] == folder != m}
        place = {(*folder, name): number for number, name in enumerate(listed)}
        if (listed or folder[:1] in {("fleet",), ("wire",)}) and inside != place.keys():
            yield f"{'::'.join(folder)}: list each module once in the order of reading: {inside}"
        for module, text in texts.items():
            own = module[: len(folder) + 1]
            for used in uses_of_siblings(module, text, texts) if own in place else ():
                if place[own] > place.get(used[: len(folder) + 1], place[own]):
                    yield f"{'::'.join(module)} takes from {'::'.join(used)}, which stands above"


def modules_of_the_core_on_no_map() -> Iterator[str]:
    texts = modules_of_the_core()
    for folder, text in ((() if name == ("lib",) else name, text) for name, text in texts.items()):
        docs = "\n".join(line for line in text.splitlines() if line.startswith("//!"))
        named = {name.lower() for name in NAMED_IN_RUST.findall(docs)} | {"lib", "tests"}
        inside = {
            module[len(folder)] for module in texts if module[: len(folder)] == folder != module
        }
        if missing := inside - named:
            yield f"{'::'.join(folder) or 'lib'}: say what {sorted(missing)} are for"


def modules_on_no_map() -> Iterator[str]:
    """The face of each folder names its modules, in the package below "In reading order:"."""
    files = [path.relative_to(PACKAGE) for path in sources(".py", under="python/kvbraid/")]
    for face in files:
        folder = face.parent
        if face.name != "__init__.py":
            continue
        docs = ast.get_docstring(ast.parse((PACKAGE / face).read_text())) or ""
        found = NAMED_IN_A_MAP.findall(docs.partition("In reading order:")[2])
        inside = {
            file.relative_to(folder).with_suffix("").parts[0]
            for file in files
            if file.is_relative_to(folder) and not file.name.startswith("__")
        }
        if missing := inside - {first or other for first, other in found}:
            yield f"{face}: say what {sorted(missing)} are for, in the order of reading"
        if unknown := {first for first, _ in found if first} - inside:
            yield f"{face}: {sorted(unknown)} are not here any more"


def uses_in_the_core() -> dict[Module, set[Module]]:
    texts = modules_of_the_core()
    return {module: set(uses_of_siblings(module, text, texts)) for module, text in texts.items()}


def climbs_in_the_core() -> Iterator[str]:
    for row in LAYERS_OF_THE_CORE:
        floors = {tuple(name.split("::")): floor for floor, name in enumerate(row)}
        for module, used in uses_in_the_core().items():
            here = floor_of(module, floors)
            climbs = [other for other in used if here < floor_of(other, floors) < len(floors)]
            yield from (f"{module} takes names from {other}, above it" for other in climbs)


def floor_of(module: Module, floors: dict[Module, int]) -> int:
    """Modules without a floor may take names from all, and are out of everyone's way."""
    found = (floors.get(module[:n]) for n in range(len(module), 0, -1))
    return next((floor for floor in found if floor is not None), len(floors))


def scattered_types() -> Iterator[str]:
    files: dict[str, set[str]] = {}
    for path in sources(".rs", under="crates/core/src/"):
        room = path.relative_to(CORE).with_suffix("").parts[0]
        for name in INHERENT_IMPL.findall(path.read_text()):
            files.setdefault(f"{room}::{name}", set()).add(name_of(path))
    for name, found in files.items():
        if len(found) > MOST_FILES_OF_A_TYPE:
            yield f"{name}: methods in {len(found)} files; take a part out of it"


def types_of(path: Path) -> set[str]:
    rule = TYPE_IN_RUST if path.suffix == ".rs" else TYPE_IN_PYTHON
    text = path.read_text().split("\nmod tests {")[0]
    return {next(filter(None, found.groups())) for found in rule.finditer(text)}


def types_defined_twice() -> Iterator[str]:
    twice = {
        (room, name)
        for room, suffix in (
            ("crates/core/src/", ".rs"), ("crates/python/src/", ".rs"), ("python/", ".py"),
        )
        for name, modules in Counter(
            name
            for path in sources(suffix, under=room)
            if not path.stem.endswith("tests")
            for name in types_of(path)
        ).items()
        if modules > 1
    }  # fmt: skip
    yield from (
        f"{each}: a type of another module has this name" for each in twice - DEFINED_TWICE
    )
    yield from (f"{each}: once only; strike it off the list" for each in DEFINED_TWICE - twice)


def circles_of_the_core() -> Iterator[str]:
    uses = uses_in_the_core()
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        circle = " -> ".join("::".join(module) for module in error.args[1])
        yield f"{circle}: say which of them is to be read first"


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


def clocks_in_tests() -> Iterator[str]:
    for path in sources(".py", under="tests/"):
        if path.name.startswith("test_") and not name_of(path).startswith(WAITING_TESTS):
            yield from (f"{name_of(path)}: {line}" for line in CLOCK.findall(path.read_text()))


def download_addresses() -> Iterator[str]:
    return lines_matching(DOWNLOAD_ADDRESS)


def ambiguous_directions() -> Iterator[str]:
    return lines_matching(AMBIGUOUS_DIRECTION)


def private_words() -> Iterator[str]:
    """A row of the changelog that says what a name is now has to say what it was."""
    lines = lines_matching(PRIVATE_WORD)
    return (line for line in lines if not re.match(r"CHANGELOG\.md:\d+: \| `", line))


@pytest.mark.parametrize(
    "rule",
    [
        too_long_files,
        nameless_modules,
        modules_without_docstring,
        stray_native_imports,
        helpers_in_test_modules,
        native_names_without_differential_test,
        imports_against_the_reading_order,
        modules_on_no_map,
        modules_of_the_core_on_no_map,
        circles_of_the_core,
        climbs_in_the_core,
        scattered_types,
        types_defined_twice,
        machine_paths,
        clocks_in_tests,
        download_addresses,
        ambiguous_directions,
        private_words,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_tree_has_no(rule: Callable[[], Iterator[str]]) -> None:
    assert list(rule()) == []


def test_the_package_under_test_is_the_one_the_run_claims_to_test() -> None:
    """`make test` sets KVBRAID_TESTED=wheel; by hand, the editable install is tested."""
    imported_from_tree = Path(kvbraid.__file__).resolve().is_relative_to(ROOT / "python")
    assert imported_from_tree == (os.environ.get("KVBRAID_TESTED") != "wheel")


def test_a_file_is_as_long_as_its_code() -> None:
    python = '"""Docs.\n\n"""\n\n# A reason.\nNAME = 1\n"""More."""\n\n\ndef call(): ...\n'
    assert lines_of_code("a.py", python) == 2
    assert lines_of_code("a.rs", "//! Docs.\n\n/// More.\nfn call() {} // A reason.\n") == 1


def test_a_rule_of_this_file_sees_a_violation(tmp_path: Path) -> None:
    stray = tmp_path / "stray.py"
    stray.write_text("from kvbraid._native import decode\nimport kvbraid._native\n")
    assert list(imports_of(stray)) == ["kvbraid._native.decode", "kvbraid._native"]
    used = uses_of_siblings(
        ("a", "b"), "use super::c::{D, e::{F, G}};\nuse std::fs;", {("a", "c")}
    )
    assert list(used) == [("a", "c")] * 3
    floors = {("a",): 0, ("a", "c"): 1}
    assert [floor_of(module, floors) for module in (("a", "b"), ("a", "c", "d"), ("e",))] == [
        0,
        1,
        2,
    ]
    assert INHERENT_IMPL.findall("impl<T: A> B<'_, T> {\nimpl C for D {\nimpl E {") == ["B", "E"]
    assert CLOCK.findall("import timeit\nfrom time import monotonic") == [
        "import timeit",
        "from time",
    ]
    assert MACHINE_PATH.search("see /" + "work/notes")
    assert DOWNLOAD_ADDRESS.search("https" + "://host/a-1.0.whl")
    assert PRIVATE_WORD.search("Its la" + "w: nothing")
    assert TYPE_IN_RUST.findall("pub(super) struct A<'a> {\n    struct B;\nenum C {") == ["A", "C"]
