"""Pools and rates: the working set by hand, and the rate of a load."""

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.models import CONFIGS
from kvbraid.policy import Seconds
from kvbraid.sim.routing.loads import idle_rate, pool_blocks, rate_of, working_set
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet, SimulatedPod
from kvbraid.sim.traces.models import simulated_model

from tests.unit.sim.routing.fleets import FULL, PACE, STATES, ask, work

LONG = ask(0, range(160))  # Ten blocks.
SHORT = ask(1, range(500, 548))  # Three.


@pytest.mark.parametrize("model", [FULL, STATES], ids=lambda model: model.name)
def test_the_working_set_counts_blocks_between_their_first_and_last_use(model: object) -> None:
    assert model in (FULL, STATES)
    assert working_set(work(LONG, SHORT), FULL) == 10
    assert working_set(work(LONG, SHORT, LONG), FULL) == 13
    assert working_set(work(LONG, SHORT, SHORT, SHORT), FULL) == 10
    assert working_set(work(LONG, LONG), STATES) == 10


def test_pods_share_the_working_set_and_have_room_for_the_longest_prompt() -> None:
    asks = work(*(ask(number, range(number * 1_000, number * 1_000 + 160)) for number in range(9)))
    twice = work(*asks.asks, *asks.asks)
    assert pool_blocks(twice, FULL, share=1.0, num_pods=3) == 31
    assert (
        pool_blocks(twice, FULL, share=0.1, num_pods=3) == 21
    )  # Two prompts, and the null block.
    with pytest.raises(InvalidValueError, match="share of the working set is 0"):
        pool_blocks(twice, FULL, share=0, num_pods=3)


@pytest.mark.parametrize("step_tokens", [1_024, 8_192])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_smallest_pool_has_room_for_the_longest_prompt(name: str, step_tokens: int) -> None:
    model = simulated_model(name)
    asks = work(ask(0, range(20_000)))
    blocks = pool_blocks(asks, model, share=0.001, num_pods=8, step_tokens=step_tokens)
    pace = Pace(prefill=Seconds(step_tokens=step_tokens))
    pod = SimulatedPod(PodId("a"), SimulatedFleet(model=model, num_blocks=blocks, pace=pace))
    assert pod.prefill(asks.asks[0].prompt()).cached == 0


def test_a_rate_is_found_even_if_more_requests_mean_fewer_hits() -> None:
    asked: list[float] = []

    def utilisation(rate: float) -> float:
        asked.append(rate)
        return rate * (0.01 if rate < 50 else 0.02)

    assert rate_of(0.4, utilisation, guess=7.0) == pytest.approx(40, rel=0.02)
    assert len(asked) <= 8
    assert 49 < rate_of(0.7, utilisation, guess=7.0) < 51  # No rate has this load.
    with pytest.raises(InvalidValueError, match="load is 1; expected a share"):
        rate_of(1, utilisation, guess=1.0)


def test_without_reuse_the_rate_of_a_load_is_what_prefills_allow() -> None:
    asks = work(ask(0, range(100)), ask(1, range(300)))  # 2 s and 4 s.
    assert idle_rate(asks, PACE, load=0.5, num_pods=6) == pytest.approx(1.0)
