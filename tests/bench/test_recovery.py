"""The benchmarks of recovery: the host tier follows the rule, and costs are what rows say."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import Dense
from kvbraid.resume import resume
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.harness.row import present
from bench.recovery import traces
from bench.recovery.bench_recomputed import (
    FAULTS,
    ROWS,
    conversations,
    one_block_of_each_job,
    play,
    row,
)
from bench.recovery.engine import Engine, Fault
from bench.recovery.host import Host
from bench.recovery.traces import MODELS, model_of

BLOCK = 16
LENGTH = 12
GROUPS = (
    GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=BLOCK),
    GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=2 * BLOCK + 1),
    GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=BLOCK, chunk=3 * BLOCK),
    GroupSpec(kind=SpecKind.MAMBA, block_size=BLOCK),
)
HASHES = [bytes([position]) * 16 for position in range(LENGTH)]
POSITIONS = st.sets(st.integers(0, LENGTH - 1))


@given(
    groups=st.sets(st.sampled_from(range(1, 4))).map(lambda own: [0, *sorted(own)]),
    num_stored=st.integers(0, LENGTH),
    stored=st.lists(POSITIONS, min_size=4, max_size=4),
    dropped=st.lists(st.tuples(st.integers(0, 3), st.integers(0, LENGTH - 1)), max_size=4),
    hit=st.integers(0, LENGTH - 1),
    tail=st.integers(0, 1),
)
def test_the_host_tier_and_a_hit_serve_what_the_rule_says(
    groups: list[int],
    num_stored: int,
    stored: list[set[int]],
    dropped: list[tuple[int, int]],
    hit: int,
    tail: int,
) -> None:
    specs = tuple(GROUPS[index] for index in groups)
    host, held = Host(specs), []
    host.store([0], HASHES[:num_stored])
    for number in range(1, len(specs)):
        host.store([number], [HASHES[p] for p in stored[number] if p < num_stored])
    for number, position in dropped:
        if number < len(specs) and position < num_stored:
            host.drop(host.record(number, HASHES[position]))
    for number in range(len(specs)):
        there = {p for p in range(LENGTH) if host.holds(number, HASHES[p])} | {*range(hit)}
        held.append({(position + 1) * BLOCK for position in there})
    num_tokens = LENGTH * BLOCK + tail
    expected = resume(Topology(groups=specs), num_tokens, held)
    assert host.longest(HASHES, hit * BLOCK, num_tokens) == expected


def test_a_dropped_record_is_gone_until_it_is_stored_again() -> None:
    host = Host(GROUPS[:2])
    host.store([0, 1], HASHES)
    host.drop(host.record(0, HASHES[5]))
    host.drop(host.record(1, HASHES[4]))
    assert (host.holds(0, HASHES[5]), host.holds(1, HASHES[5])) == (False, True)
    assert host.longest(HASHES, 0, 1_000) == 4 * BLOCK
    host.store([0], HASHES)
    assert host.longest(HASHES, 0, 1_000) == LENGTH * BLOCK
    assert not host.holds(1, HASHES[4])


def test_what_a_hit_holds_needs_no_record() -> None:
    host = Host(GROUPS[:2])
    host.store([0], HASHES[:6])
    host.store([1], [HASHES[5]])
    assert host.longest(HASHES, 5 * BLOCK, 1_000) == 6 * BLOCK
    assert host.longest(HASHES, 4 * BLOCK, 1_000) == 4 * BLOCK


def served(model: SimulatedModel, num_blocks: int, fault: Fault) -> Engine:
    """A prompt of 64 blocks, another that evicts it, and the first again, which is loaded."""
    engine = Engine(model, num_blocks, Dense(), fault)
    size = model.hash_block_size
    for prompt in (b"a", b"b", b"a"):
        hashes = [prompt * 15 + bytes([position]) for position in range(64)]
        engine.run(64 * size + 1, hashes)
        engine.cache.debug.check_integrity()
    return engine


def test_truncating_and_going_back_in_place_cost_the_same_with_full_attention() -> None:
    tally = served(model_of("full"), 66, lambda _: [40, 50]).tally
    assert (tally.num_loads, tally.num_failures) == (1, 1)
    assert (tally.ours, tally.truncate, tally.retry, tally.zero) == (384, 384, 384, 1_024)


def test_a_window_that_failed_leaves_nothing_but_the_boundaries_that_can_be_loaded() -> None:
    """The load fills the 8 blocks of the last window first; the third of them fails."""
    engine = served(model_of("gptoss"), 140, lambda _: [2])
    tally = engine.tally
    assert (tally.num_failures, tally.ours, tally.zero) == (1, 1_024, 1_024)
    assert tally.retry == 1_024 - 58 * BLOCK
    assert engine.host.holds(0, b"a" * 15 + bytes([58]))  # It was computed again.


def test_a_chunk_boundary_is_a_point_to_resume_at_without_any_chunk() -> None:
    model = model_of("llama4")
    engine = Engine(model, 5_000, Dense(), lambda num_blocks: [num_blocks - 1])
    for prompt in (b"a", b"b", b"a"):
        hashes = [prompt * 14 + number.to_bytes(2, "big") for number in range(1_025)]
        engine.run(1_025 * BLOCK + 1, hashes)
    assert engine.tally.num_failures == 1
    assert engine.tally.ours == BLOCK  # 16 400 tokens were loaded, and 16 384 are two chunks.


def test_a_load_that_does_not_fail_costs_nothing() -> None:
    tally = served(model_of("qwen3next"), 80, lambda _: []).tally
    assert (tally.num_loads, tally.num_failures, tally.ours, tally.zero) == (1, 0, 0, 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("faults", FAULTS)
def test_a_play_repeats_itself_and_ours_is_never_dearer(model: str, faults: str) -> None:
    trace = conversations(num_conversations=30, num_turns=3)
    runs = [play(trace, model_of(model), FAULTS[faults](random.Random(1))) for _ in range(2)]
    tally = runs[0].tally
    assert tally == runs[1].tally
    assert tally.num_loads > 0
    assert tally.retry <= tally.ours <= tally.zero
    if FAULTS[faults] is one_block_of_each_job:
        assert tally.num_failures == tally.num_loads
    for engine in runs:
        engine.cache.debug.check_integrity()


def test_there_is_a_row_for_each_trace_and_model() -> None:
    names = {f"recomputed_{trace}_{model}" for trace in traces.FILES for model in MODELS}
    assert {row.name for row in ROWS} == names
    assert {row.name for row in ROWS if "truncate" in row.beside} == {
        "recomputed_weka_full",
        "recomputed_mooncake_full",
    }


def test_rows_without_their_trace_are_left_out_with_what_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBRAID_TRACES", str(tmp_path))
    (tmp_path / traces.FILES["weka"]).touch()
    rows = [row(name) for name in ("recomputed_weka_full", "recomputed_mooncake_full")]
    assert list(present(rows)) == ["recomputed_weka_full"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: recomputed_mooncake_full: the folder {tmp_path} lacks ")
    assert line.endswith("; TRACES=folder chooses one")
