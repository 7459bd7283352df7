"""The roofline of a model, by hand."""

import pytest
from kvbraid.models import EngineOptions
from kvbraid.sim.routing.pace import Hardware, Pace
from kvbraid.sim.traces.models import simulated_model

HARDWARE = Hardware(flops=1e15, bandwidth=1e12, fixed_s=0.01)


@pytest.mark.parametrize("ranks", [1, 2])
def test_prefill_is_bound_by_compute_and_decoding_by_memory(ranks: int) -> None:
    """Llama 3.1 8B: 16 GFLOP a token, 16 GB of weights, 128 KiB a cached token."""
    model = simulated_model("llama-3.1-8b", EngineOptions(num_ranks=ranks))
    pace = Pace.of_model(model, HARDWARE)
    assert pace.prefill.per_token == pytest.approx(16e-6 / ranks)
    assert pace.prefill.fixed == 0.01
    assert pace.step_s == pytest.approx(0.01 + 0.016 / ranks)
    assert pace.read_s == pytest.approx(131_072 / 1e12 / ranks)


def test_an_answer_takes_longer_the_more_others_there_are() -> None:
    pace = Pace(step_s=0.01, read_s=1e-6)
    assert pace.answer(100, 1_000, 1) == pytest.approx(100 * 0.011)
    assert pace.answer(100, 1_000, 10) == pytest.approx(100 * 0.02)
    assert pace.answer(0, 1_000, 10) == 0
