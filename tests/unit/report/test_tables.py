"""Every table of the command line keeps its names and numbers, in any terminal and in a pipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import EvictionPolicy, PolicyChoice, Saved
from kvbraid.fleet.answer import Limiting, PodScore
from kvbraid.ids import GroupId, PodId, PodState
from kvbraid.models import EngineOptions, group_config, kinds_of, read_config
from kvbraid.report.answers import show_explanation, show_pods, show_scores
from kvbraid.report.models import show_groups, show_layers
from kvbraid.report.replay import listing_of
from kvbraid.report.simulation import show_rates
from kvbraid.report.tables import Column, Listing, print_listing
from kvbraid.service.answers import (
    ExplainAnswer,
    ExplainGroup,
    ExplainRow,
    Group,
    PodRow,
    PodsAnswer,
    ScoreAnswer,
)
from kvbraid.sim.captures.replay import Report
from kvbraid.sim.traces.footprint import Footprint
from kvbraid.sim.traces.grid import Grid, GridCell
from kvbraid.sim.traces.memory_size import parse_size
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.policies import CACHE_POLICIES, retention_of
from kvbraid.sim.traces.simulation import HitRate
from kvbraid.sim.traces.trace import Trace
from kvbraid.spec import SpecKind
from rich.console import Console

from tests.unit.report.terminal import WIDTHS, shown_at

LLAMA4: Final = Path(__file__).parents[2] / "fixtures" / "models" / "llama-4-scout-17b-16e.json"
PODS: Final = tuple(PodId(f"qwen3-next-decode-7d9f8b6c5d-{end}") for end in ("x2x4z", "q8k2w"))
MODEL: Final = "Qwen/Qwen3-Next-80B-A3B-Instruct"
KINDS: Final = (SpecKind.CHUNKED_LOCAL_ATTENTION, SpecKind.SLIDING_WINDOW)
"""Two of the longest names."""

COLUMNS: Final = (
    Column("name", is_left=True), Column("many numbers"), Column("why", is_left=True, wraps=True),
)  # fmt: skip
WORDS: Final = st.text(st.sampled_from("abc123"), min_size=1, max_size=30)


@given(
    st.lists(st.tuples(WORDS, WORDS, st.lists(WORDS, max_size=9).map(" ".join)), max_size=5),
    st.integers(40, 160),
)
def test_a_table_has_every_cell_and_no_line_is_too_long(
    rows: list[tuple[str, str, str]], columns: int
) -> None:
    listing = Listing(columns=COLUMNS, rows=rows)
    text = shown_at(columns, lambda console: print_listing(console, listing))
    assert max(map(len, text.splitlines()), default=0) <= columns
    assert "…" not in text
    for name, number, why in rows:
        assert {name, number, *why.split()} <= set(text.split())


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=5))
def test_without_a_terminal_each_row_is_one_line(rows: list[tuple[str, str, str]]) -> None:
    text = shown_at(
        None, lambda console: print_listing(console, Listing(columns=COLUMNS, rows=rows))
    )
    assert [tuple(line.split()) for line in text.splitlines()[2:]] == rows


def test_a_row_in_a_pipe_is_one_line_however_long_it_is() -> None:
    row = ("a" * 90, "1" * 40, "some words " * 20)
    text = shown_at(
        None, lambda console: print_listing(console, Listing(columns=COLUMNS, rows=[row]))
    )
    assert text.splitlines()[-1].split() == " ".join(row).split()


def test_a_row_that_does_not_fit_is_a_record_with_the_names_of_its_columns() -> None:
    listing = Listing(columns=COLUMNS, rows=[("a" * 30, "12345", "some words that go on and on")])
    text = shown_at(40, lambda console: print_listing(console, listing))
    assert text.splitlines() == [
        "a" * 30, "  many numbers: 12345", "  why: some words that go on and on",
    ]  # fmt: skip


def scores(console: Console) -> None:
    rows = [
        PodScore(
            pod=PodId(pod), dp_rank=0, state=PodState.REBUILDING, lower=123_456, upper=131_072,
            expected=130_000, exactness="bound", present=131_072, tiers={},
            limiting=Limiting(group=GroupId(1), boundary=131_088), score=123_456.0,
        )
        for pod in PODS
    ]  # fmt: skip
    show_scores(console, ScoreAnswer(model=MODEL, num_tokens=131_100, pods=rows))


def pods(console: Console) -> None:
    groups = [
        Group(
            group=GroupId(i), kind=kind, block_size=544, window=None, chunk=None, eagle=False,
            held={},
        )
        for i, kind in enumerate(KINDS)
    ]  # fmt: skip
    rows = [
        PodRow(
            pod=pod, dp_rank=0, model=MODEL, state=PodState.DEGRADED, reason="3 messages lost",
            messages=1_234_567, groups=groups, placed={"tokens": 7_654_321},
            refused={"parent_unknown": 12}, hash_function="", num_blocks=0, memory_bytes=0,
            last_seq=1_234_566, endpoint="", replay_endpoint=None, bind=None,
        )
        for pod in PODS
    ]  # fmt: skip
    show_pods(console, PodsAnswer(pods=rows))


def explanation(console: Console) -> None:
    groups = [
        ExplainGroup(
            group=GroupId(i), kind=kind, block_size=16, window=131_072,
            held=[True] * 500, accepted=[16],
        )
        for i, kind in enumerate(KINDS)
    ]  # fmt: skip
    row = ExplainRow(
        pod=PODS[0], dp_rank=0, state=PodState.EXACT, lower=7_984, upper=7_984,
        limiting=Limiting(group=GroupId(1), boundary=8_000), reason="", groups=groups,
    )  # fmt: skip
    show_explanation(console, ExplainAnswer(model=MODEL, num_tokens=8_001, pods=[row]))


def layers(console: Console) -> None:
    show_layers(console, kinds_of(read_config(LLAMA4)))


def groups(console: Console) -> None:
    show_groups(console, group_config(read_config(LLAMA4), EngineOptions()))


def replays(console: Console) -> None:
    reports = [
        Report("mimo2-with-a-long-name", requests=12_345, exact=11_111, bounded=1_234,
               excused=1_234, by_class={"in_flight": 1_200, "late_clear": 34})
    ]  # fmt: skip
    print_listing(console, listing_of(reports))


def rates(console: Console) -> None:
    model = simulated_model("gpt-oss-120b")
    grid = Grid(
        trace=Trace(name="t", block_tokens=512, num_requests=9, play=list),
        model=model,
        memories=[parse_size(text) for text in ("20GiB", "40GiB", "100GiB")],
        policies={name: retention_of(name, model) for name in CACHE_POLICIES},
    )
    choice = PolicyChoice(
        now=Saved(EvictionPolicy.INTERVAL, 1_024, 0.5),
        num_requests=12_345,
        since=9_876,
        num_changes=3,
        others=[
            Saved(EvictionPolicy.DENSE, 0, 0.25),
            Saved(EvictionPolicy.INTERVAL, 8_192, 0.3456),
        ],
    )
    cells = [
        GridCell(
            memory_bytes=memory, policies=policies,
            result=HitRate(num_blocks=182_044, num_requests=9, num_left_out=12_031,
                           prompt_tokens=10_000, hit_tokens=7_281,
                           policy_choice=choice if policies[0].startswith("value") else None),
        )
        for memory, policies in grid.cases()
    ]  # fmt: skip
    show_rates(console, grid, Footprint(1, 1, 1), cells)


EVERY_TABLE: Final[dict[str, tuple[Callable[[Console], None], tuple[str, ...]]]] = {
    "score": (
        scores,
        (*PODS, MODEL, "123456 to 131072", "g1 at 131088", "130000", "rebuilding"),
    ),
    "pods": (
        pods,
        (*PODS, MODEL, "1234567", "1234566", "tokens 7654321", "parent_unknown 12", "degraded",
         "chunked_local_attention/544", "sliding_window/544"),
    ),
    "explain": (
        explanation,
        (PODS[0], "g0 chunked_local_attention/131072", "g1 sliding_window/131072", "| 7984"),
    ),
    "model": (layers, ("chunked_local_attention", "8,192", "4,096", "44-46", "47")),
    "model --groups": (groups, ("chunked_local_attention", "8,192", "65,536", "786,432")),
    "replay": (
        replays,
        ("mimo2-with-a-long-name", "12345", "11111", "1234", "90.00", "in_flight 1200",
         "late_clear 34"),
    ),
    "cache simulate": (
        rates,
        ("20 GiB", "40 GiB", "100 GiB", "72.81", "182,044", "12,031", "dense", "interval-0",
         "interval-1k", "interval-8k", "value", "value-flat",
         "interval-1024", "9,876", "interval-8192", "+15.44"),
    ),
}  # fmt: skip


def test_the_strips_of_groups_with_long_names_stand_below_each_other() -> None:
    _, full, _, window, _, answer, _ = shown_at(100, explanation).splitlines()
    assert full.index("█") == window.index("█")
    assert answer.index("|") == max(full.rindex("█"), window.rindex("█"))


@pytest.mark.parametrize("columns", [*WIDTHS, None])
@pytest.mark.parametrize("table", EVERY_TABLE)
def test_every_table_keeps_names_and_numbers(table: str, columns: int | None) -> None:
    show, cells = EVERY_TABLE[table]
    text = shown_at(columns, show)
    assert "…" not in text
    assert [cell for cell in cells if cell not in " ".join(text.split())] == []
    if columns is not None:
        assert max(map(len, text.splitlines())) <= columns


def test_the_leans_of_a_simulation_fit_into_80_columns() -> None:
    lines = [line.split() for line in shown_at(80, rates).splitlines()]
    assert ["policy", "memory", "evicts", "since", "rival", "ahead", "(%)"] in lines
    for policy in ("value", "value-flat"):
        for size in ("20", "40", "100"):
            row = [policy, size, "GiB", "interval-1024", "9,876", "interval-8192", "+15.44"]
            assert lines.count(row) == 1
    assert [line for line in lines if line[:1] == ["dense"]] == [["dense", *["72.81"] * 3]]
