"""What the run of tensors' tests checked, as one line of JSON after everything else.

Tests add to the counts what they have compared, so a test that did not run counts nothing.
"""

import json
from dataclasses import asdict, dataclass

import pytest


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was coloured through tensors and read back through references."""

    models: int = 0
    engine_layouts: int = 0
    random_plans: int = 0
    bytes_missed: int = 0
    bytes_foreign: int = 0


COUNTS = pytest.StashKey[Counts]()


@pytest.fixture(scope="session")
def counts(pytestconfig: pytest.Config) -> Counts:
    return pytestconfig.stash[COUNTS]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counts()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The terminal's own summary is written by now."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(
            json.dumps({"layout": asdict(config.stash[COUNTS])}, separators=(",", ":"))
        )
