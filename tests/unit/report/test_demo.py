"""The demo on a terminal and without one."""

import io
from collections.abc import Iterator

import pytest
from kvbraid.report.demo import Display, describe_groups, watch
from kvbraid.sim.fleet.driver import Outcome, PodTally
from kvbraid.sim.fleet.presets import PRESETS
from rich.console import Console

PODS = (("gpt-oss-0", "gpt-oss-sim"), ("qwen3-next-1", "qwen3-next-sim"))


def tallies() -> list[PodTally]:
    """Ten requests so far, one of them predicted early."""
    first, second = (PodTally(pod, PRESETS[model]) for pod, model in PODS)
    first.exact, second.exact, second.early = 4, 5, 1
    first.present, first.predicted, first.true = 123_456, 98_765, 98_764
    return [first, second]


def outcomes() -> list[Outcome]:
    """Ten requests, the last of them early."""
    return [
        Outcome(
            pod="gpt-oss-0",
            num_tokens=64,
            lower=32,
            upper=32,
            true=32,
            present=48,
            is_early=number == 9,
        )
        for number in range(10)
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_display_shows_pods_and_progress_on_either_kind_of_output(is_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=160)
    with Display(console, tallies(), num_requests=10) as display:
        for number, outcome in enumerate(outcomes(), start=1):
            display.show(number, outcome)
    text = out.getvalue()
    assert ("qwen3-next-1" in text) == is_terminal
    assert ("10 of 10 requests: 9 exact, 0 wrong, 1 early (not judged)" in text) != is_terminal


def test_the_last_table_stays_also_when_the_demo_is_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> Iterator[Outcome]:
        yield outcomes()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(interrupted(), tallies(), 10)
    text = capsys.readouterr().out
    assert "1 of 10 requests" in text
    assert "qwen3-next-1" in text


def test_the_table_and_the_lines_say_what_full_attention_alone_would_have_promised() -> None:
    table, lines = io.StringIO(), io.StringIO()
    console = Console(file=table, force_terminal=True, width=80, color_system=None)
    console.print(Display(console, tallies(), num_requests=10).table(10))
    with Display(Console(file=lines, width=160), tallies(), num_requests=10) as display:
        display.show(10, outcomes()[0])
    heads, row = table.getvalue().splitlines()[1:3]
    assert heads.split()[3:7] == ["full", "only", "predicted", "reused"]
    assert row.split()[2:5] == ["123456", "98765", "98764"]
    assert "full only: tokens that counting" in table.getvalue()
    assert "predicted 98765 tokens, reused 98764, full only 123456" in lines.getvalue()


def test_a_topology_is_described_in_a_few_words() -> None:
    words = {model: describe_groups(preset.topology) for model, preset in PRESETS.items()}
    assert words == {
        "gpt-oss-sim": "window 128 + full",
        "gemma-3-sim": "5 x window 256 + full",
        "llama-4-sim": "3 x chunked_local 256 + full",
        "qwen3-next-sim": "3 x mamba + full",
    }
