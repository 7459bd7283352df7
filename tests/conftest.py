"""What every test shares: Hypothesis profiles, and the account of skipped tests.

A skip is never silent: the run ends with the list of skips and their reasons, and a reason that
is not in EXPECTED_SKIPS fails the run. Fixtures live beside the tests that use them, not here.
"""

import logging
import os
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings

EXPECTED_SKIPS: Final = frozenset(
    {
        "needs ../shared/captures",
        "needs rsvg-convert",
        "needs haproxy",
        "needs nats-server",
        "needs envoy",
        "needs chromium",
        "needs promtool",
        "needs systemd-analyze",
        "needs the wheel",
        "needs kubectl",
        "needs kubernetes-validate",
        "needs a network of its own",
    }
)
"""Reasons a test may skip for: material that a clone lacks, a program of librsvg2-bin,
HAProxy, Envoy and kubernetes-validate, which `make .venv-gateway/installed` brings, promtool of
Prometheus, a browser, systemd, kubectl, the wheel that `make test` builds, and a network without
other machines for what listens on all addresses."""

collect_ignore = []
if os.environ.get("KVBRAID_REAL_ENGINE") != "1":
    collect_ignore.append("vllm")  # Needs a real vLLM: `make test-vllm`.
if os.environ.get("KVBRAID_TORCH") != "1":
    collect_ignore.append("torch")  # Needs torch: `make test-torch`.
if os.environ.get("KVBRAID_OTEL") != "1":
    collect_ignore.append("otel")  # Needs an environment of its own: `make test-otel`.

if os.environ.get("KVBRAID_RAY") != "1":
    collect_ignore.append("ray")  # Needs Ray Serve: `make test-ray`.

if os.environ.get("KVBRAID_CONSOLE") != "1":
    collect_ignore.append("console")  # Needs a browser: `make test-console`.

# Shared machines make single examples slow, so no example has a deadline; the test has a timeout.
settings.register_profile("ci", derandomize=True, max_examples=100, deadline=None)
settings.register_profile(
    "soak", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # A planted bug need not be understood: the first failure will do.
    "mutants",
    settings.get_profile("ci"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_skips: Final[dict[str, str]] = {}


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_runtest_teardown() -> None:
    """Undo what a server in this process has set: other tests look at what is logged."""
    logging.getLogger("kvbraid").setLevel(logging.NOTSET)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skips[report.nodeid] = _skip_reason(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skips[report.nodeid] = _skip_reason(report)


def _unexpected_skips() -> Iterator[str]:
    for nodeid, reason in sorted(_skips.items()):
        if reason not in EXPECTED_SKIPS:
            yield f"{nodeid}: {reason}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and any(_unexpected_skips()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _skips:
        return
    terminalreporter.section("skipped")
    for nodeid, reason in sorted(_skips.items()):
        terminalreporter.line(f"{nodeid}: {reason}")
    for line in _unexpected_skips():
        terminalreporter.line(f"UNEXPECTED SKIP {line}", red=True)
