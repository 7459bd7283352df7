"""The demo's last line and exit status."""

import json

import pytest
from kvbraid.sim.fleet.demo import _verdict
from kvbraid.sim.fleet.driver import PodTally
from kvbraid.sim.fleet.engine import EngineAnswer
from kvbraid.sim.fleet.presets import PRESETS


@pytest.mark.parametrize(
    ("exact", "wrong", "early", "expected", "status"),
    [
        (90, 0, 10, 100, 0),
        (80, 0, 20, 100, 0),
        (79, 0, 21, 100, 1),  # Too few were settled to mean anything.
        (90, 1, 9, 100, 1),
        (50, 0, 5, 100, 130),  # Interrupted.
    ],
)
def test_the_status_is_zero_only_for_a_whole_run_without_a_wrong_prediction(
    exact: int,
    wrong: int,
    early: int,
    expected: int,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    preset = PRESETS["gpt-oss-sim"]
    tally = PodTally("a", preset, exact=exact, wrong=wrong, early=early)
    tally.answer = EngineAnswer(hit=0, last_seq=6, cached_blocks=0, removed_blocks=0)
    assert _verdict([tally, PodTally("b", preset)], num_expected=expected) == status
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    requests = exact + wrong + early
    assert verdict == {
        "requests": requests,
        "exact": exact,
        "wrong": wrong,
        "pods": 2,
        "messages": 7,
    }
