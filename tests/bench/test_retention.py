"""The workloads of the bench `retention`: what tests and the bench play is the same traffic."""

import json
from itertools import islice

import pytest
from kvbraid.cache import Dense, Retention

from bench.harness.measure import Figures
from bench.harness.row import line
from bench.retention.bench_cells import NUM_REQUESTS, ROWS, Play, rates, row
from bench.retention.play import MODELS, OURS, Engine, hit_rate
from bench.retention.table import lines, summary
from bench.retention.workloads import (
    WORKLOADS,
    Ask,
    Shape,
    Texts,
    asks,
    hot_prefix,
    second_requests,
)

HALF = Shape(length=0.5, count=0.5)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_function_of_its_seed_and_its_shape(name: str) -> None:
    def first(seed: str, shape: Shape) -> list[bytes]:
        prompts = islice(WORKLOADS[name](Texts(seed), shape), 20)
        return [prompt.tobytes() for prompt in prompts]

    assert first("a", HALF) == first("a", HALF)
    assert first("a", HALF) != first("b", HALF)
    assert sum(map(len, first("a", HALF))) < sum(map(len, first("a", Shape())))


def test_a_prefix_returns_after_its_distance() -> None:
    played = list(hot_prefix("a", 3, 2, 16))
    assert [ask.reusable for ask in played] == [896, 0, 0, 0] * 2
    assert played[0].tokens[:900] == played[4].tokens[:900]


def test_only_the_second_request_of_a_prefix_counts() -> None:
    played = list(second_requests("a", 1, 2, 16, fill=3))
    assert [ask.reusable for ask in played] == [0, 0, 0, *(0, 0, 896, 0) * 2]


def test_rates_begin_after_the_warm_up() -> None:
    text = Texts("a").text(320)
    played = [Ask(text, 320)] * 4
    model = MODELS["full"]
    assert hit_rate(model, 100, Dense(), played, warm_up=1) == 95  # All except the last block.
    assert hit_rate(model, 100, Dense(), played, warm_up=0) == 95 * 3 / 4
    assert hit_rate(model, 10, Dense(), played, warm_up=0) == 0  # It does not fit.


def test_each_cell_is_a_row_of_its_own() -> None:
    names = [each.name for each in ROWS]
    assert len(names) == len(set(names)) == len(WORKLOADS) * 12 + 24 + 8


def test_a_row_says_how_far_ours_is_from_the_best_and_the_table_shows_it() -> None:
    played = asks(WORKLOADS["chat"], "a", 60, HALF)
    cell = row("chat_gptoss_300", "?", ("gptoss", 300), Play(lambda: played, 10, -1))
    with cell.ours() as lead:
        figures = {"ours": Figures((lead(),))}
    for policy, side in cell.beside.items():
        with side() as rate:
            figures[policy] = Figures((rate(),))
    shown = json.loads(line(cell, figures))
    others = [rate for policy, rate in shown["beside"].items() if policy != "value"]
    assert shown["ours"] == pytest.approx(shown["beside"]["value"] - max(others), abs=0.01)
    assert any("chat_gptoss_300" in text for text in lines([shown]))
    assert next(summary([shown])).startswith("1 cells")
    rates.cache_clear()


def test_learned_lengths_prevent_a_loss_where_windows_do_not_fit() -> None:
    """Without them the rate is 4 points below the best of the engine's policies."""
    model = MODELS["gptoss"]
    played = asks(WORKLOADS["short_long"], "s2short_long", NUM_REQUESTS)
    rivals = [hit_rate(model, 600, rival, played) for rival in model.rivals.values()]
    assert hit_rate(model, 600, OURS, played) > max(rivals)


def played_by(policy: Retention, workload: str, seed: str, pool: int) -> tuple[float, int]:
    """The rate after a warm-up, and the number of steps."""
    engine = Engine(MODELS["mamba"], pool, policy)
    reused = reusable = 0
    for number, ask in enumerate(asks(WORKLOADS[workload], seed, 900)):
        hit = engine.serve(ask.tokens)
        if number >= 400:
            reused, reusable = reused + hit, reusable + ask.reusable
    return 100 * reused / reusable, engine.num_steps


@pytest.mark.parametrize("seed", ["other", "seeds"])
def test_the_second_request_resumes_where_earlier_prefixes_ended(seed: str) -> None:
    ours, _ = played_by(OURS, "shift", seed, 400)
    engines, _ = played_by(Dense(), "shift", seed, 400)
    assert ours > engines + 10


@pytest.mark.parametrize("workload", ["chat", "retry", "never"])
def test_where_no_state_is_resumed_steps_do_not_end_for_one(workload: str) -> None:
    _, ours = played_by(OURS, workload, "other", 400)
    _, engines = played_by(Dense(), workload, "other", 400)
    assert ours <= 1.02 * engines
