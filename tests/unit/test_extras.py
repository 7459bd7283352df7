"""The base install: the library works without the extra `serve`; a missing extra is one line."""

import re
from importlib import metadata

import pytest
from kvbraid.extras import MODULES

from tests.captures import ROOT
from tests.unit.fresh_process import fresh

BLOCKED = """
from kvbraid.extras import MODULES
sys.modules.update(dict.fromkeys((*MODULES["serve"], "typing_extensions")))
"""
"""An import of a module of the extra fails from now on; msgspec uses another one if it can."""


def required(extra: str | None) -> set[str]:
    """Return the packages that an extra asks for, or the base, as their distributions spell it."""
    lines = metadata.requires("kvbraid") or []
    wanted = [line for line in lines if ("extra ==" in line) == (extra is not None)]
    return {
        re.split(r"[<>=;\[ ]", line, maxsplit=1)[0].replace("-", "_")
        for line in wanted
        if extra is None or re.search(rf"extra == ['\"]{extra}['\"]", line)
    }


def test_the_base_needs_msgspec_and_nothing_else() -> None:
    assert required(None) == {"msgspec"}


def test_the_modules_of_the_extra_are_those_of_its_packages() -> None:
    modules = {
        module
        for module, packages in metadata.packages_distributions().items()
        if required("serve") & {package.replace("-", "_") for package in packages}
    }
    assert {*MODULES["serve"]} <= modules
    assert len(MODULES["serve"]) == len(required("serve")) - 1, "uvicorn imports uvloop, we do not"
    assert {*MODULES["route"]} - {*MODULES["serve"]} <= required("route")


def test_the_library_works_without_the_extra() -> None:
    program = f"""{BLOCKED}
before = set(sys.modules)
import kvbraid, kvbraid.cache, kvbraid.events, kvbraid.hashing, kvbraid.models, kvbraid.resume
from kvbraid import *
print(*[name for name in kvbraid.__all__ if getattr(kvbraid, name) is None])
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*loaded - {{*sys.stdlib_module_names, "msgspec", "kvbraid"}})
"""
    assert fresh(program) == ["", ""]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["serve"], ["model", "config.json"]])
def test_a_command_without_the_extra_names_it_in_one_line(arguments: list[str]) -> None:
    program = f"""{BLOCKED}
sys.stderr = sys.stdout
sys.argv[1:] = {arguments!r}
from kvbraid.__main__ import main
try:
    main()
except SystemExit as exit:
    print(exit.code)
"""
    assert fresh(program) == [
        "kvbraid: this command needs click, which is not installed: in a checkout of kvbraid, "
        "pip install '.[serve]'",
        "2",
    ]


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [("route", "aiohttp", "route"), ("pick-serve", "grpc", "envoy")],
)
def test_a_gateway_without_its_own_extra_names_that(
    command: str, missing: str, extra: str
) -> None:
    program = f"""
sys.modules["{missing}"] = None
sys.stderr = sys.stdout
sys.argv[1:] = ["{command}"]
from kvbraid.__main__ import main
try:
    main()
except SystemExit as exit:
    print(exit.code)
"""
    assert fresh(program) == [
        f"kvbraid: kvbraid {command} needs {missing}, which is not installed: in a checkout of "
        f"kvbraid, pip install '.[{extra}]'",
        "2",
    ]


@pytest.mark.parametrize(
    "statement", ["import kvbraid.service.feeds.subscriber", "from kvbraid import Subscriber"]
)
def test_a_module_of_the_service_names_the_extra(statement: str) -> None:
    program = f"""{BLOCKED}
try:
    {statement}
except ImportError as error:
    print(error)
"""
    (line,) = fresh(program)
    assert "kvbraid.service needs click" in line
    assert line.endswith("in a checkout of kvbraid, pip install '.[serve]'")


def test_the_subscriber_is_a_name_of_the_package_and_no_other_name_loads_sockets() -> None:
    program = """
from kvbraid import *
import kvbraid
for name in kvbraid.__all__:
    getattr(kvbraid, name)
print("zmq" in sys.modules, "uvicorn" in sys.modules, "asyncio" in sys.modules)
kvbraid.Subscriber
print("zmq" in sys.modules, "uvicorn" in sys.modules)
"""
    assert fresh(program) == ["False False False", "True False"]


def test_the_command_runs_where_the_extra_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvbraid.__main__ import main

    monkeypatch.setattr("sys.argv", ["kvbraid", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    assert "kvbraid" in capsys.readouterr().out


def test_nothing_tells_to_install_kvbraid_by_a_name_that_is_not_published() -> None:
    sources = [
        *(ROOT / "python").rglob("*.py"),
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    named = [path for path in sources if re.search(r"install '?kvbraid\b", path.read_text())]
    assert named == []
