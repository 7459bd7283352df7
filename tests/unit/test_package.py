"""The package's face: a name loads what it needs and nothing else, with or without the core."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import kvbraid
import kvbraid.errors

from tests.unit.fresh_process import PLANNED, blocked, fresh

CONFIG = Path(__file__).parents[1] / "fixtures" / "tiny" / "exaone4" / "config.json"


def names_for_type_checkers() -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(inspect.getsource(kvbraid))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kvbraid."):
            assert all(alias.asname == alias.name for alias in node.names), "else not exported"
            yield from ((alias.name, str(node.module)) for alias in node.names)


def test_type_checkers_see_the_names_that_the_package_resolves() -> None:
    assert dict(names_for_type_checkers()) == kvbraid._MODULES
    assert (
        sorted(kvbraid._MODULES) == dir(kvbraid) == sorted([*kvbraid.__all__, *kvbraid._OF_SERVE])
    )
    assert all(getattr(kvbraid, name) is not None for name in dir(kvbraid))


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
        "kvbraid kvbraid.errors kvbraid.reading kvbraid.spec",
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


def test_a_plan_needs_no_native_core_no_numpy_and_no_torch() -> None:
    program = f"""{blocked("kvbraid._native", "numpy", "torch")}
{PLANNED}
assert from_json(to_json(plan)) == plan
import kvbraid.layout.connectors
for module in ("descriptors", "tensors"):
    try:
        __import__(f"kvbraid.layout.{{module}}")
    except ModuleNotFoundError as error:
        print(error)
"""
    remedy = "which is not installed: in a checkout of kvbraid, pip install '.[torch]'"
    assert fresh(program) == [
        "3072",
        f"kvbraid.layout.descriptors needs numpy, {remedy}",
        f"kvbraid.layout.tensors needs torch, {remedy}",
    ]


def test_descriptors_need_no_native_core_and_no_torch() -> None:
    program = f"""{blocked("kvbraid._native", "torch")}
{PLANNED}
from kvbraid.layout.descriptors import descriptors
print(descriptors(plan, [[2]], bases=4096).tolist())
"""
    assert fresh(program) == ["3072", "[[10240, 3072, 0]]"]


def test_a_layout_is_planned_from_a_checkout_that_was_never_built(tmp_path: Path) -> None:
    package = tmp_path / "kvbraid"
    for source in Path(str(kvbraid.__file__)).parent.rglob("*.py"):
        copy = package / source.relative_to(Path(str(kvbraid.__file__)).parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    program = f"""sys.path.insert(0, {str(tmp_path)!r})
{PLANNED}
import kvbraid
import kvbraid.errors
print(kvbraid.__file__)
try:
    kvbraid.__version__
except ModuleNotFoundError:
    print("no core")
"""
    assert fresh(program) == ["3072", str(package / "__init__.py"), "no core"]
