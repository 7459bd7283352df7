"""What an installed kvbraid says about itself, as package indexes and type checkers read it."""

import re
from importlib import metadata, resources

import kvbraid


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
