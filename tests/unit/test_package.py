"""The package's face: a name loads what it needs and nothing else, with or without the core."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kvbraid

CONFIG = Path(__file__).parents[1] / "fixtures" / "tiny" / "exaone4" / "config.json"


def fresh(program: str) -> list[str]:
    """Return the lines that a program prints in a process that has imported nothing before."""
    command = [sys.executable, "-W", "error", "-c", f"import sys\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def names_for_type_checkers() -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(inspect.getsource(kvbraid))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kvbraid."):
            assert all(alias.asname == alias.name for alias in node.names), "else not exported"
            yield from ((alias.name, str(node.module)) for alias in node.names)


def test_type_checkers_see_the_names_that_the_package_resolves() -> None:
    assert dict(names_for_type_checkers()) == kvbraid._MODULES
    assert sorted(kvbraid._MODULES) == kvbraid.__all__ == dir(kvbraid)
    assert all(getattr(kvbraid, name) is not None for name in kvbraid.__all__)


def test_every_error_is_a_name_of_the_package() -> None:
    errors = inspect.getmembers(kvbraid.errors, inspect.isclass)
    assert {name for name, _ in errors} <= set(kvbraid.__all__)


def test_a_module_is_loaded_when_a_name_of_it_is_asked_for() -> None:
    program = """
def show():
    print(*sorted(name for name in sys.modules if name.startswith("kvbraid")))

import kvbraid
show()
kvbraid.KvbraidError
show()
from kvbraid import Topology
show()
"""
    assert fresh(program) == [
        "kvbraid",
        "kvbraid kvbraid.errors",
        "kvbraid kvbraid.errors kvbraid.spec",
    ]


def test_models_are_read_without_the_native_core() -> None:
    program = f"""
sys.modules["kvbraid._native"] = None  # An import of it fails from now on.
from pathlib import Path
from kvbraid import EngineDialect, GroupSpec, KvbraidError, PodId, SpecKind, Topology
from kvbraid.models import EngineOptions, group_config, read_config
config = read_config(Path({str(CONFIG)!r}))
print(*[g.kind.value for g in group_config(config, EngineOptions()).grouping.groups])
try:
    import kvbraid.cache
except ModuleNotFoundError:
    print("no core")
"""
    kinds, refusal = fresh(program)
    assert "sliding_window" in kinds
    assert refusal == "no core"
