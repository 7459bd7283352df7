"""What an operator of a real vLLM sees of retention by value: which policy it follows, and why."""

import os
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kvbraid.cache import EvictionPolicy, PolicyChoice, Saved
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from tests.vllm.drop_in_pair import full, tokens, window
from tests.vllm.engines import Engines, Layout, config

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm import policy_metrics
    from kvbraid.integrations.vllm.policy_metrics import PolicyReport

DENSE, VALUE = (
    Saved(policy, 0, share)
    for policy, share in ((EvictionPolicy.DENSE, 0.25), (EvictionPolicy.VALUE, 0.5))
)
SHORT_OF_MEMORY: Final = Layout((window(40), full()), 110, 16, 16)


def policy_choice(now: Saved, other: Saved, num_requests: int, since: int = 0) -> PolicyChoice:
    return PolicyChoice(
        now=now, others=[other], num_requests=num_requests, since=since, num_changes=bool(since)
    )


BEGUN: Final = policy_choice(DENSE, VALUE, 0)
LATER: Final = policy_choice(VALUE, DENSE, 70, since=64)


def choices_one_by_one(*answers: PolicyChoice | None) -> Any:  # noqa: ANN401 - stands in for a cache.
    return SimpleNamespace(policy_choice=iter(answers).__next__)


def shown(
    engine: str, names: Sequence[str], registry: CollectorRegistry = REGISTRY
) -> tuple[float | None, list[tuple[float | None, ...]]]:
    """Return the age, and by policy whether it is the one and what is gained against it."""
    read = registry.get_sample_value
    of_engine = {"engine": engine}
    return read("kvbraid_policy_age_requests", of_engine), [
        tuple(
            read(name, {**of_engine, "policy": policy})
            for name in ("kvbraid_policy", "kvbraid_policy_gain")
        )
        for policy in names
    ]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what is logged; a handler would be dropped when vLLM sets its logging up."""
    found: list[str] = []
    logger = SimpleNamespace(info=lambda text, *values: found.append(text % values))
    monkeypatch.setattr(policy_metrics, "logger", logger)
    return found


def test_gauges_follow_the_policy_and_a_line_says_why_it_changed(lines: list[str]) -> None:
    names = ("dense", "value")
    report = PolicyReport(choices_one_by_one(BEGUN, BEGUN, LATER), "11")
    assert shown("11", names) == (0, [(1, 0), (0, -0.25)])
    report.tell()
    assert lines == ["kvbraid: retention by value begins with dense and then adapts."]
    report.tell()
    assert shown("11", names) == (6, [(0, 0.25), (1, 0)])
    assert lines[1:] == [
        "kvbraid: after 64 requests, retention by value follows value instead of dense; "
        "it would have saved more than each other policy lately, in % of compute: +25.00 dense."
    ]


def test_of_a_cache_with_a_fixed_policy_nothing_is_told(lines: list[str]) -> None:
    PolicyReport(choices_one_by_one(None), "12").tell()
    assert lines == []
    assert shown("12", ("dense",)) == (None, [(None, None)])


def test_another_process_reads_the_gauges_as_vllm_does(tmp_path: Path) -> None:
    """vLLM's server collects what the processes share in `PROMETHEUS_MULTIPROC_DIR`."""
    script = (
        "from tests.vllm.test_drop_in_policies import *\n"
        "PolicyReport(choices_one_by_one(BEGUN, LATER), '0').tell()\n"
        "PolicyReport(choices_one_by_one(BEGUN), '1')"
    )
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    assert shown("0", ("dense", "value"), registry) == (6, [(0, 0.25), (1, 0)])
    assert shown("1", ("dense", "value"), registry) == (0, [(1, 0), (0, -0.25)])


class OfEngine(Engines):
    """Schedulers of the data-parallel engine that the metrics call by this number."""

    number = 21

    def config(self, layout: Layout, **options: Any) -> Any:  # noqa: ANN401 - vLLM's own type.
        made = config(layout, **options)
        made.parallel_config = copy(made.parallel_config)
        made.parallel_config.data_parallel_index = self.number
        return made


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_scheduler_tells_which_policy_its_cache_has(is_async: bool, lines: list[str]) -> None:
    OfEngine.number += 1
    engine = str(OfEngine.number)
    random = Random(7)
    prefixes = [tokens(seed, 64) for seed in range(20)]
    engines = OfEngine(SHORT_OF_MEMORY, is_async=is_async, retention="value-flat", interval=0)
    for number in range(200):
        engines.add(random.choice(prefixes) + tokens(1_000 + number, 20), 1)
        for _ in range(3):
            engines.step()
    found = engines.schedulers[0].kv_cache_manager.cache.policy_choice()
    assert found.num_changes > 0, "traffic that does not change its policy shows nothing"
    age, by_policy = shown(engine, (found.now.name, *found.gains))
    assert age == found.num_requests - found.since
    assert by_policy == [(1, 0), *((0, gain) for gain in found.gains.values())]
    assert len(lines) == 1 + found.num_changes
    assert f"after {found.since} requests" in lines[-1]


@pytest.mark.parametrize("options", [{}, {"retention": "engine"}])
def test_under_the_engines_own_retention_nothing_is_told(
    options: dict[str, Any], lines: list[str]
) -> None:
    OfEngine.number += 1
    OfEngine(SHORT_OF_MEMORY, is_async=False, **options)
    assert lines == []
    assert shown(str(OfEngine.number), ()) == (None, [])
