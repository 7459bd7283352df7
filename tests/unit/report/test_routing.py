"""`kvbraid fleet simulate` as people and programs see it."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError, KvbraidError, TooLargeError, TraceError, UnknownError
from kvbraid.sim.routing.comparison import BLIND
from kvbraid.sim.routing.fleet import POLICIES

SMALL = ("--requests", "40", "--pods", "3")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ("fleet", "simulate", *arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Forty prompts of 128 tokens, of which the first 64 are one of three beginnings."""
    chance = random.Random(1)
    starts = [[*range(number, number + 64)] for number in (1_000, 2_000, 3_000)]
    prompts = [chance.choice(starts) + [10_000 + number] * 64 for number in range(40)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, prompts)))
    return path


def test_json_has_a_line_per_policy_and_for_what_it_knows() -> None:
    lines = run("--workload", "shared", *SMALL, "--rate", "20", "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    twice = [(name, known) for name in POLICIES for known in (True, False)]
    expected = [(name, known) for name, known in twice if known or name not in BLIND]
    assert [(row["policy"], row["in_flight"]) for row in rows] == expected
    assert {row["rate"] for row in rows} == {20.0}
    assert {row["num_pods"] for row in rows} == {3}
    assert len({row["prompt_tokens"] for row in rows}) == 1
    assert sum(row["num_violated"] for row in rows) == 0


def test_the_table_has_the_shortest_wait_first_and_fits_80_columns() -> None:
    names = ("cost", "full_attention", "round_robin")
    chosen = [argument for name in names for argument in ("--policy", name)]
    table = run("--workload", "chat", *SMALL, "--load", "0.5", *chosen).splitlines()
    rows = [line.split() for line in table[3:8]]
    assert sorted((row[0], row[1]) for row in rows) == [
        ("cost", "events"), ("cost", "sent"), ("full_attention", "events"),
        ("full_attention", "sent"), ("round_robin", "-"),
    ]  # fmt: skip
    means = [float(row[2]) for row in rows]
    assert means == sorted(means)
    assert max(map(len, table[1:8])) <= 80
    assert "chat: 40 requests, " in table[8]
    assert "llama-3.1-8b on 3 pods of" in table[9]
    assert table[10].endswith("checked, 0 violated")


def test_prompts_of_ones_own_are_played(prompts: Path) -> None:
    lines = run(str(prompts), "--rate", "5", "--policy", "cost", "--blocks", "50", "--json")
    row = json.loads(lines.splitlines()[0])
    assert (row["workload"], row["num_blocks"]) == ("prompts", 50)
    assert row["hit_rate"] > 0.3


def test_users_wait_for_their_answers(prompts: Path) -> None:
    arguments = ("--users", "2", "--think", "0", "--policy", "random", "--memory", "1GiB")
    (line,) = run(str(prompts), *arguments, "--json").splitlines()
    assert json.loads(line)["users"] == 2
    assert "2 users" in run(str(prompts), *arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), InvalidValueError, "neither TRAFFIC nor --workload; give one of them"),
        (("a.jsonl", "--workload", "chat"), InvalidValueError, "TRAFFIC and --workload; give"),
        (("a.jsonl",), TraceError, "a.jsonl does not exist; give a file"),
        (("--workload", "talk"), UnknownError, "'talk' is not known; expected one of chat"),
        (("--workload", "chat", "--policy", "best"), UnknownError, "'best' is not known"),
        (("--workload", "chat", "--model", "no"), UnknownError, "model 'no' is not known"),
        (("--workload", "chat", "--rate", "0"), InvalidValueError, "rate is 0.0; expected"),
        (("--workload", "chat", "--load", "1"), InvalidValueError, "load is 1.0; expected"),
        (("--workload", "chat", "--pool", "nan"), InvalidValueError, "pool is nan; expected"),
        (("--workload", "chat", "--memory", "40"), InvalidValueError, "no unit; write 40GiB"),
        (("--workload", "chat", "--blocks", "9"), TooLargeError, "pool of 9 blocks; give"),
        (
            ("--workload", "chat", "--rate", "1", "--users", "2"),
            InvalidValueError,
            "--rate and --users exclude each other; give one of them",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    arguments: tuple[str, ...], error: type[KvbraidError], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(*arguments, *SMALL)
