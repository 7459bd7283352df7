"""Hostile HTTP from seeds: a short run always, a long run if KVBRAID_FUZZ_STEPS says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service import http_fuzz
from tests.service.serving import serving

STEPS = int(os.environ.get("KVBRAID_FUZZ_STEPS", "400"))
SEED = int(os.environ.get("KVBRAID_FUZZ_SEED", "11"))


@pytest.mark.timeout(180 + STEPS)
def test_whatever_arrives_every_answer_is_documented_and_nothing_is_left_behind() -> None:
    counts = http_fuzz.run(SEED, STEPS)
    assert {200, 400, 404} <= set(counts)


def test_a_real_server_survives_what_nearly_is_http(tmp_path: Path) -> None:
    draw, config = http_fuzz.Draw(SEED), tmp_path / "fleet.toml"
    config.write_text("[console]\nstreams = 0\n")  # None would ever end.
    with serving("--config", str(config)) as (process, url):
        seen = http_fuzz.storm(url, draw, connections=min(STEPS, 2000))
        assert http_fuzz.is_well(url)
        process.terminate()
        assert process.wait(timeout=20) == 0
    assert 500 not in seen
    assert {400, 404} <= set(seen)


def test_the_same_seed_gives_the_same_bytes() -> None:
    draws = [http_fuzz.Draw(SEED) for _ in range(2)]
    first, second = ([draw.request() for _ in range(50)] for draw in draws)
    assert first == second


def test_a_long_run_is_one_command() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.service.http_fuzz", "3", "20"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, timeout=60, check=True
    )
    assert done.stdout.startswith("20 steps in ")
