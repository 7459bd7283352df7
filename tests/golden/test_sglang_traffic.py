"""Recorded SGLang traffic: every request predicted before the fact, against what was reused.

The fixtures are the first operations of captures of SGLang 0.5.23
(`tests/fixtures/captures/sglang`); where whole captures lie beside the repository, they are
replayed too.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest
from kvbraid.sim.captures.read import Capture, Lookup, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, replay

from tests.captures import SGLANG_FIXTURES, SGLANG_WHOLE, captures_in


@dataclass(frozen=True)
class Limits:
    """The largest mean of upper - lower, in tokens, and the least share of right expectations.

    `routed` is that share of an index which is told of the requests that the engine got.
    """

    width: float
    expected: float
    routed: float = 0.0


HYBRIDS: Final = {
    "mamba_nobuf_p1": Limits(width=134, expected=0.92, routed=0.985),
    "mamba_buf_p64": Limits(width=132, expected=0.92, routed=0.985),
    "swa_p16": Limits(width=238, expected=0.93, routed=0.98),
    "swa_p16_ratio1": Limits(width=75, expected=0.97, routed=0.98),
    "hicache_swa_p16": Limits(width=245, expected=0.88),
}
"""Captures of models whose windows or states no event tells of."""

UNTOLD: Final[Mapping[str, tuple[Mapping[str, object], Limits]]] = {
    "dense_p16_extra_key": ({}, Limits(width=247, expected=0.89)),
    "dense_p16_lora_reload": ({"adapter_reloads": True}, Limits(width=94, expected=0.95)),
}
"""Captures in which one prompt has several caches, and no event says which: what an operator adds.

That requests have extra keys, the requests show.
"""

CONCURRENT: Final = {"dense_p16_conc4"}
CAPTURES: Final = captures_in(SGLANG_FIXTURES, SGLANG_WHOLE)
DENSE: Final = [f for f in CAPTURES if f.name not in {*HYBRIDS, *UNTOLD, *CONCURRENT}]


def name_of(folder: Path) -> str:
    return f"{'fixture' if folder.parent == SGLANG_FIXTURES else 'whole'}-{folder.name}"


@lru_cache(maxsize=2)
def capture_at(folder: Path) -> Capture:
    return read_capture(folder)


def lookups(capture: Capture) -> list[Lookup]:
    return [op for op in capture.operations if isinstance(op, Lookup)]


def on_the_gpu(folder: Path) -> Capture:
    """A capture with a host tier, with only what its lookups found on the GPU."""
    rows = lzma.decompress((folder / "requests.jsonl.xz").read_bytes()).splitlines()
    found = {
        row["i"]: row["admitted"]["device"] for row in map(json.loads, rows) if "prompt" in row
    }
    capture = capture_at(folder)
    operations = [
        replace(op, reused_tokens=found[op.index]) if isinstance(op, Lookup) else op
        for op in capture.operations
    ]
    return replace(capture, operations=operations, tiers=("gpu",))


def assert_is_within(limits: Limits, report: Report) -> None:
    assert report.width_sum <= limits.width * report.requests
    assert report.expected_exact >= limits.expected * report.requests


def assert_all_are_exact(report: Report) -> None:
    assert report.requests > 0
    assert report.exact == report.expected_exact == report.requests
    assert report.width_sum == 0


def test_there_is_traffic_of_every_kind() -> None:
    kinds = {group.kind.value for f in CAPTURES for group in capture_at(f).topology.groups}
    assert kinds == {"full_attention", "sliding_window", "mamba"}
    every = [op for f in CAPTURES for op in lookups(capture_at(f))]
    assert any(op.cache_salt for op in every)
    assert any(op.lora for op in every)
    assert any(max(op.token_ids) >= 1 << 32 for op in every)
    assert any(capture_at(f).tiers == ("gpu", "cpu") for f in CAPTURES)


@pytest.mark.parametrize("folder", DENSE, ids=name_of)
def test_every_request_of_a_dense_model_is_exact(folder: Path) -> None:
    assert_all_are_exact(replay(capture_at(folder)))


@pytest.mark.parametrize("folder", [f for f in DENSE if capture_at(f).tiers], ids=name_of)
def test_with_a_host_tier_what_the_gpu_alone_holds_is_exact_too(folder: Path) -> None:
    gpu = on_the_gpu(folder)
    assert sum(op.reused_tokens for op in lookups(gpu)) < sum(
        op.reused_tokens for op in lookups(capture_at(folder))
    )
    assert_all_are_exact(replay(gpu))


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name in CONCURRENT], ids=name_of)
def test_with_requests_in_flight_every_mismatch_is_one_that_nobody_could_know(
    folder: Path,
) -> None:
    report = replay(capture_at(folder))
    assert report.exact + report.by_class["in_flight"] == report.requests
    assert report.by_class["in_flight"] > 0
    assert set(report.by_class) == {"late_clear", "in_flight"}


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name in CONCURRENT], ids=name_of)
def test_a_mismatch_that_earlier_events_do_not_explain_is_not_called_in_flight(
    folder: Path,
) -> None:
    """With the events that were published only, the same predictions are as wrong as before."""
    capture = capture_at(folder)
    later = [
        replace(op, pieces_seen=op.messages_seen) if isinstance(op, Lookup) else op
        for op in capture.operations
    ]
    published = [message.payload for message in capture.messages]
    report = replay(replace(capture, operations=later, pieces=published))
    assert report.by_class["in_flight"] == 0
    assert report.by_class["unexplained"] == report.requests - report.exact > 0


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name in HYBRIDS], ids=name_of)
def test_the_bounds_of_a_hybrid_hold_the_truth_and_are_narrow(folder: Path) -> None:
    report = replay(capture_at(folder))
    assert report.over == report.under == 0
    assert_is_within(HYBRIDS[folder.name], report)


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name in HYBRIDS], ids=name_of)
def test_what_a_gateway_sent_improves_the_expected_value_of_a_hybrid_alone(folder: Path) -> None:
    untold, told = (
        replay(capture_at(folder), ReplayOptions(routed=routed)) for routed in (False, True)
    )
    assert told.expected_exact >= HYBRIDS[folder.name].routed * told.requests
    assert (told.lower_sum, told.upper_sum) == (untold.lower_sum, untold.upper_sum)


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name in UNTOLD], ids=name_of)
def test_where_caches_differ_in_what_no_event_tells_a_declared_pod_is_never_wrong(
    folder: Path,
) -> None:
    settings, limits = UNTOLD[folder.name]
    report = replay(read_capture(folder, settings))
    assert report.over == report.under == 0
    assert_is_within(limits, report)
    others = {"extra_keys": False, "adapter_reloads": False}
    assert replay(read_capture(folder, others)).over > 0, "or there is nothing to declare"


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name == "mamba_buf_p64"], ids=name_of)
def test_states_that_do_not_run_short_are_promised_at_every_end(folder: Path) -> None:
    """The slots were fewer than it takes to be sure, but none was missing in this life."""
    report = replay(read_capture(folder, {"silent_pools_never_short": True}))
    assert report.over == report.under == 0
    assert_is_within(Limits(width=70, expected=0.92), report)


def test_a_pool_that_may_run_short_promises_less() -> None:
    folder = SGLANG_FIXTURES / "swa_p16_ratio1"
    roomy, short = (
        replay(read_capture(folder, settings))
        for settings in ({}, {"silent_pools_never_short": False})
    )
    assert 0 == short.lower_sum < roomy.lower_sum
    assert short.upper_sum == roomy.upper_sum
