"""What people see: strips, tables and event lines, plain and within the width."""

from io import StringIO

import msgspec
import pytest
from kvbraid.events.model import (
    AllBlocksCleared,
    BatchRefusal,
    BlockRemoved,
    BlockStored,
    EventBatch,
)
from kvbraid.fleet.answer import Limiting, PodScore
from kvbraid.ids import GroupId, PodId, PodState
from kvbraid.report.answers import show_explanation, show_pick, show_pods, show_scores
from kvbraid.report.events import event_lines
from kvbraid.service.answers import (
    CostTerms,
    Coverage,
    ExplainAnswer,
    ExplainGroup,
    ExplainRow,
    FitAnswer,
    PickAnswer,
    PickCandidate,
    PodRow,
    PodsAnswer,
    ScoreAnswer,
)
from kvbraid.spec import SpecKind
from rich.console import Console

from tests.unit.report.terminal import shown_at


def group(index: int, kind: SpecKind, held: str, accepted: list[int] | None) -> ExplainGroup:
    window = 32 if kind is SpecKind.SLIDING_WINDOW else None
    return ExplainGroup(
        group=GroupId(index), kind=kind, block_size=16, window=window,
        held=[mark == "x" for mark in held], accepted=accepted,
    )  # fmt: skip


def explained(num_tokens: int, *groups: ExplainGroup) -> ExplainAnswer:
    row = ExplainRow(
        pod=PodId("a"), dp_rank=0, state=PodState.EXACT, lower=32, upper=32,
        limiting=Limiting(group=GroupId(1), boundary=48), reason="", groups=list(groups),
    )  # fmt: skip
    return ExplainAnswer(model="m", num_tokens=num_tokens, pods=[row])


def plain(answer: ExplainAnswer, *, width: int = 80) -> list[str]:
    file = StringIO()
    show_explanation(Console(file=file, width=width), answer)
    return file.getvalue().splitlines()


def test_the_strip_shows_at_a_glance_which_group_ends_the_prefix_and_where() -> None:
    full = group(0, SpecKind.FULL_ATTENTION, "xxxx", [16, 32, 48, 64])
    window = group(1, SpecKind.SLIDING_WINDOW, "xx.x", [16, 32])
    assert plain(explained(70, full, window)) == [
        "a rank 0 exact: 32 of 70 tokens, ended by g1 at 48",
        "  g0 full_attention           ████·",
        "    accepts                   ^^^^",
        "> g1 sliding_window/32        ██·█·",
        "    accepts                   ^^",
        "  answer                       | 32",
        "█ held  ▒ partly  · not held  ^ a boundary that the group accepts  | the answer",
    ]


def test_a_group_that_never_restricts_and_a_bound_are_said_in_words() -> None:
    other = group(0, SpecKind.CROSS_ATTENTION, "....", None)
    answer = explained(64, other)
    row = answer.pods[0]
    bound = ExplainRow(
        pod=row.pod, dp_rank=1, state=PodState.DEGRADED, lower=16, upper=48,
        limiting=None, reason="3 messages lost", groups=row.groups,
    )  # fmt: skip
    lines = plain(ExplainAnswer(model="m", num_tokens=64, pods=[bound]))
    assert lines[0] == "a rank 1 degraded: 16 to 48 of 64 tokens (3 messages lost)"
    assert lines[2].endswith("every boundary")
    assert lines[3].endswith("|-| 16 to 48")


@pytest.mark.parametrize("width", [30, 60, 200])
@pytest.mark.parametrize("num_blocks", [1, 5, 8192])
def test_wide_requests_are_scaled_down_to_the_width(width: int, num_blocks: int) -> None:
    held = "x" * (num_blocks // 2 + 1)
    full = group(0, SpecKind.FULL_ATTENTION, held.ljust(num_blocks, "."), [16])
    lines = plain(explained(num_blocks * 16, full), width=max(width, 90))
    assert all(len(line) <= max(width, 90) for line in lines[1:4])
    assert "█" in lines[1] or "▒" in lines[1]


def test_scores_are_listed_best_first() -> None:
    rows = [
        PodScore(
            pod=PodId(pod), dp_rank=0, state=PodState.EXACT, lower=lower, upper=lower,
            expected=lower, exactness="exact", present=64, tiers={}, limiting=None,
            score=float(lower),
        )
        for pod, lower in (("low", 16), ("high", 32))
    ]  # fmt: skip
    file = StringIO()
    show_scores(Console(file=file, width=100), ScoreAnswer(model="m", num_tokens=70, pods=rows))
    text = file.getvalue()
    assert text.index("high") < text.index("low")
    assert "m: 70 tokens" in text


def test_every_event_and_refusal_is_a_line() -> None:
    stored = BlockStored(
        block_hashes=(1, 2, 3), parent_block_hash=None, token_ids=tuple(range(64)), block_size=16,
        group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=128,
    )  # fmt: skip
    batch = EventBatch(
        ts=0.5,
        events=(stored, BlockRemoved(block_hashes=(255,), group_idx=1), AllBlocksCleared()),
        refused=(BatchRefusal(reason="unknown_tag", event_index=3),),
    )
    assert event_lines("a/0", 7, batch) == [
        "00:00:00.500 a/0 #7 stored  g1 sliding_window/128  3 blocks of 16  64 tokens  root  GPU"
        "  0000000000000001 0000000000000002 +1",
        "00:00:00.500 a/0 #7 removed g1  1 block  GPU  00000000000000ff",
        "00:00:00.500 a/0 #7 cleared all blocks",
        "00:00:00.500 a/0 #7 refused unknown_tag (event 3)",
    ]


@pytest.mark.parametrize("ts", [None, 1e300, float("nan"), float("inf"), -1e18])
def test_a_time_that_no_clock_shows_is_dashes(ts: float | None) -> None:
    (line,) = event_lines("a", -1, EventBatch(ts=ts, events=()))
    assert line == "--:--:--.--- a #-1 empty"


HOSTILE = PodId("a\x1b[2J\u202eb[/bold]\n")


def test_what_an_engine_sends_cannot_steer_the_terminal() -> None:
    stored = BlockStored(
        block_hashes=(1,), parent_block_hash=None, token_ids=(1,), block_size=1, group_idx=0,
        kv_cache_spec_kind=HOSTILE, medium=HOSTILE, lora_name=HOSTILE,
    )  # fmt: skip
    batch = EventBatch(
        ts=0.5, events=(stored,), refused=(BatchRefusal(reason=HOSTILE, event_index=None),)
    )
    for line in event_lines(HOSTILE, 7, batch):
        assert line.isprintable()
        assert "a\\x1b[2J\\u202eb[/bold]\\n" in line


def test_what_to_do_about_a_loss_stands_beside_its_reason() -> None:
    file = StringIO()
    row = PodRow(
        pod=PodId("a"), dp_rank=0, model="m", state=PodState.DEGRADED, messages=0,
        reason="batches 0 to 3 are lost", groups=[], placed={}, refused={}, hash_function="",
        num_blocks=0, memory_bytes=0,
        last_seq=None, endpoint="", replay_endpoint=None, bind=None, remedy="list the groups",
    )  # fmt: skip
    show_pods(Console(width=200, file=file), PodsAnswer(pods=[row]))
    assert "degraded batches 0 to 3 are lost (list the groups)" in " ".join(
        file.getvalue().split()
    )


def test_what_a_server_calls_things_is_text_and_no_markup() -> None:
    file = StringIO()
    console = Console(width=200, file=file)
    show_scores(console, ScoreAnswer(model=HOSTILE, num_tokens=1, pods=[]))
    row = PodRow(
        pod=HOSTILE, dp_rank=0, model=HOSTILE, state=PodState.EXACT, reason=HOSTILE, messages=0,
        groups=[], placed={}, refused={HOSTILE: 1}, hash_function="", num_blocks=0, last_seq=None,
        endpoint="", replay_endpoint=None, bind=None, memory_bytes=0,
    )  # fmt: skip
    show_pods(console, PodsAnswer(pods=[row]))
    shown = file.getvalue()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[/bold]" in shown


def test_an_explanation_carries_the_cells_that_any_screen_draws() -> None:
    full = group(0, SpecKind.FULL_ATTENTION, "xxxx", [16, 32, 48, 64])
    other = group(1, SpecKind.CROSS_ATTENTION, "x...", None)
    (row,) = explained(64, full, other).pods
    strips = row.strips(64, most_cells=2)
    assert strips == (
        32,
        [([Coverage.HELD, Coverage.HELD], {0, 1}), ([Coverage.PARTLY, Coverage.MISSING], None)],
        0,
        0,
    )


def test_nothing_reusable_is_before_the_first_cell() -> None:
    row = msgspec.structs.replace(explained(16).pods[0], lower=0, upper=0)
    assert row.strips(16, most_cells=1)[1:] == ([], -1, -1)


def candidate(pod: str, wait: float, potential: float = 0.0) -> PickCandidate:
    terms = CostTerms(
        wait=wait, others=0.0, prefill=0.0123, loading=0.0, decoding=0.0, potential=potential,
        displacement=0.0, queue=0.0,
    )  # fmt: skip
    cost = wait + terms.prefill + potential
    return PickCandidate(
        pod=pod, dp_rank=0, resumable=64, present=64, running=1, waiting=1, cost=cost, terms=terms
    )


def picked(*candidates: PickCandidate, chosen: int = 0) -> PickAnswer:
    best = candidates[chosen]
    return PickAnswer(
        pick="r", model="m", num_tokens=80, pod=best.pod, dp_rank=0, url="http://a:8000",
        state=PodState.EXACT, lower=0, upper=48, resumable=64, present=64, cost=best.cost,
        terms=best.terms, policy="cost" if best.terms else "dynamo", knowledge="events",
        seconds="default", lifted=["full"], left_out={"draining": 1}, fallbacks=[],
        candidates=list(candidates),
    )  # fmt: skip


def test_a_pick_is_a_table_of_terms_with_the_chosen_one_first() -> None:
    answer = picked(candidate("b", 0.0), candidate("a", 1.5, -0.002), chosen=1)
    assert shown_at(80, lambda console: show_pick(console, answer)).splitlines() == [
        "m: 80 tokens to a rank 0 at http://a:8000",
        "pod  rank  reuse    wait  prefill  potential    cost",
        "────────────────────────────────────────────────────",
        "a       0     64  1500.0     12.3       -2.0  1510.3",
        "b       0     64     0.0     12.3        0.0    12.3",
        "0 to 48 tokens are there now, 64 when the request gets there, known from events",
        "cost by policy cost, in ms, with default coefficients",
        "left out: 1 draining",
        "not left out although full: nobody else is there",
    ]


@pytest.mark.parametrize(
    ("seconds", "num_samples", "told"),
    [("fitted", 64, "fitted coefficients (64 samples)"), ("given", 0, "given coefficients")],
)
def test_a_pick_says_how_many_samples_its_coefficients_rest_on(
    seconds: str, num_samples: int, told: str
) -> None:
    fit = FitAnswer(num_samples=num_samples, fixed=0.01, per_token=1e-4, per_pair=0.0)
    answer = msgspec.structs.replace(picked(candidate("a", 0.0)), seconds=seconds, fit=fit)
    shown = shown_at(80, lambda console: show_pick(console, answer))
    assert f"cost by policy cost, in ms, with {told}" in shown.splitlines()


def test_a_pick_of_a_policy_without_terms_has_costs_alone() -> None:
    rows = [
        PickCandidate(
            pod=pod, dp_rank=0, resumable=0, present=0, running=0, waiting=0, cost=cost, terms=None
        )
        for pod, cost in (("never", None), ("a", 2.5))
    ]
    shown = shown_at(80, lambda console: show_pick(console, picked(*rows, chosen=1)))
    assert [line.split() for line in shown.splitlines()[1:5:1]] == [
        ["pod", "rank", "reuse", "cost"],
        ["─" * 25],
        ["a", "0", "0", "2.5"],
        ["never", "0", "0", "never"],
    ]
    assert "cost by policy dynamo\n" in shown
