"""A pytest plugin that writes the outcome of each test of a run to a file, as one JSON object.

`{"passed": node ids, "failed": {node id: kinds of exception}}`; tests of a class count as the
class, as Hypothesis makes one of each machine, and the cases of a test as one test, which passes
if none of them fails. Anything that is not a test's own exception (a file that cannot be
imported, a fixture) is missing from it.
"""

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

REPORT: Final = "KVBRAID_VERDICT"
"""The environment variable that names the file."""

_passed: Final[set[str]] = set()
_failed: Final[dict[str, set[str]]] = {}


def node_of(item: pytest.Item) -> str:
    return item.nodeid.removesuffix("::runTest").partition("[")[0]


def kinds(error: BaseException) -> Iterator[str]:
    """Name an exception's class, those of a group one by one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from kinds(inner)
    else:
        yield type(error).__name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield  # The exception of a unittest case is known only after this.
    if call.when == "call" and call.excinfo is None:
        _passed.add(node_of(item))
    elif call.when == "call" and call.excinfo is not None:
        _failed.setdefault(node_of(item), set()).update(kinds(call.excinfo.value))
    return report


def pytest_sessionfinish() -> None:
    report = {
        "passed": sorted(_passed.difference(_failed)),
        "failed": {node: sorted(found) for node, found in _failed.items()},
    }
    Path(os.environ[REPORT]).write_text(json.dumps(report))
