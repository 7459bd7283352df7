"""Recorded vLLM traffic: every request predicted before the fact, against what the engine reused.

The fixtures are the first operations of captures of vLLM 0.32 (`tests/fixtures/captures`); where
whole captures lie beside the repository, they are replayed too.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest
from kvbraid.fleet.index import Keys
from kvbraid.models import kinds_of, unsent_tokens
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, replay
from kvbraid.spec import Topology

from tests.captures import FIXTURES, WHOLE, captures_in

FULL_REPORTS: Final = "sched_k_reportfull"
CONCURRENT: Final = "sched_a_gemma3_conc4"
WIDTH_WITHOUT_HASH: Final = {
    "mistral_swa": 0.20,
    "sched_e_swa_only": 0.09,
    "sched_c_mamba_align_fine": 0.02,
}
"""Captures whose hashes the wire alone cannot all place, and how wide their bounds may be."""


def name_of(folder: Path) -> str:
    return f"{'fixture' if folder.parent == FIXTURES else 'whole'}-{folder.name}"


UNSENT: Final = {"llama4", "sched_d_llama4", "sched_h_eagle_dense"}
"""Captures with a chunk or a draft head's groups, which no event tells of."""

LLAMA4: Final = {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_chunk_size": 256,
}
"""The config.json of the model in the capture `llama4`; its chunk is what matters here."""

CAPTURES: Final = captures_in(FIXTURES, WHOLE)
SEQUENTIAL: Final = [f for f in CAPTURES if f.name not in {FULL_REPORTS, CONCURRENT}]


@lru_cache(maxsize=2)
def capture_at(folder: Path) -> Capture:
    return read_capture(folder)


def replayed(folder: Path, keys: Keys = "auto", *, full_reports: bool = False) -> Report:
    return replay(capture_at(folder), ReplayOptions(keys=keys, full_reports=full_reports))


def width(report: Report) -> float:
    return (report.upper_sum - report.lower_sum) / report.trivial_sum


def test_there_is_traffic_of_every_kind_of_group() -> None:
    kinds = {group.kind.value for f in CAPTURES for group in capture_at(f).topology.groups}
    assert kinds == {"full_attention", "sliding_window", "chunked_local_attention", "mamba"}


@pytest.mark.parametrize("folder", SEQUENTIAL, ids=name_of)
def test_every_request_is_exact_but_those_between_a_reset_and_its_event(folder: Path) -> None:
    report = replayed(folder)
    late = report.by_class["late_clear"]
    assert report.exact + late == report.requests
    assert late <= report.late_clear_max


@pytest.mark.parametrize("folder", SEQUENTIAL, ids=name_of)
def test_without_the_hash_function_bounds_hold_the_truth_and_are_mostly_exact(
    folder: Path,
) -> None:
    report = replayed(folder, "join")
    late = report.by_class["late_clear"]
    assert report.bounds_kept + late >= report.requests
    assert report.over + report.under <= late
    if folder.name not in WIDTH_WITHOUT_HASH:
        assert report.exact + late == report.requests
    elif folder.parent == WHOLE:
        assert width(report) <= WIDTH_WITHOUT_HASH[folder.name]


@pytest.mark.parametrize("keys", ["auto", "join"])
@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name not in UNSENT], ids=name_of)
def test_groups_learned_from_events_are_answered_for_like_configured_ones(
    folder: Path, keys: Keys
) -> None:
    capture = capture_at(folder)
    learned = replace(capture, topology=replace(capture.topology, groups=()))
    drifts = folder.name == FULL_REPORTS
    configured, found = (
        replay(told, ReplayOptions(keys=keys, full_reports=drifts)) for told in (capture, learned)
    )
    assert found == configured


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name == "llama4"], ids=name_of)
def test_a_models_config_says_what_groups_learned_from_events_lack(folder: Path) -> None:
    learned = replace(capture_at(folder), topology=Topology(groups=()))
    told = replace(
        learned,
        engine=replace(learned.engine, unsent_tokens=unsent_tokens(kinds_of(LLAMA4))),
    )
    assert replay(learned).bounded > 0
    report = replay(told)
    assert report.exact + report.by_class["late_clear"] == report.requests


def test_the_retention_places_what_events_alone_leave_undecided() -> None:
    """Full blocks of 64, windows of 32: the first block of a kept window is on no dense store."""
    capture = capture_at(FIXTURES / "mimo2")
    untold = replace(capture, engine=replace(capture.engine, retention=None))
    without, told = (replay(c, ReplayOptions(keys="join")) for c in (untold, capture))
    assert (without.bounded, without.bounds_kept) == (19, without.requests)
    assert (told.exact, told.placed["unplaced"]) == (told.requests, 0)


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name == CONCURRENT], ids=name_of)
def test_with_requests_in_flight_every_mismatch_is_one_that_nobody_could_know(
    folder: Path,
) -> None:
    report = replayed(folder)
    assert report.exact + report.by_class["in_flight"] == report.requests
    assert set(report.by_class) == {"late_clear", "in_flight"}


@pytest.mark.parametrize("folder", [f for f in CAPTURES if f.name == FULL_REPORTS], ids=name_of)
def test_a_pod_that_announces_reused_blocks_again_is_answered_by_bounds(folder: Path) -> None:
    report = replayed(folder, full_reports=True)
    assert report.bounds_kept == report.requests
    assert report.over == report.under == report.lower_sum == 0
    if folder.parent == WHOLE:
        assert report.upper_sum <= 306_096


@pytest.mark.parametrize("presence", ["set", "full-only"])
def test_the_usual_shortcuts_are_wrong_and_the_replay_shows_it(
    presence: str,
) -> None:
    whole = capture_at(FIXTURES / "gptoss")
    options = ReplayOptions(presence="set" if presence == "set" else "full-only")
    report = replay(whole, options)
    assert report.exact < report.requests
