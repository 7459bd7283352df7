"""The cache under retention by value against its brute-force model, as in `test_cache_manager`.

After every step also the checkpoints are equal: which there are, in which order they would go,
and what each is worth.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from kvbraid.cache import ByValue, CacheConfig
from kvbraid.models import PrefillCost

from tests.differential.test_cache_manager import CacheMachine
from tests.reference.cache_by_value import ByValueModel
from tests.reference.cache_configs import cache_configs


@st.composite
def by_value_configs(draw: st.DrawFn) -> CacheConfig:
    """Without replay: nobody resumes at a boundary there. Pools that evict all the time."""
    config = draw(cache_configs().filter(lambda config: not config.topology.replay_tokens))
    alignment = config.topology.alignment or 1
    cost = PrefillCost(draw(st.sampled_from((1.0, 0.5))), draw(st.sampled_from((0.0, 0.1))))
    interval = alignment * draw(st.sampled_from((0, 1, 2, 4)))
    return replace(
        config,
        num_blocks=draw(st.sampled_from((8, 14, 20, 30, 60))),
        retention=ByValue(interval=interval, cost=cost),
    )


class ByValueMachine(CacheMachine):
    """The checkpoints too."""

    configs = by_value_configs()
    model_of = ByValueModel
    model: ByValueModel

    @invariant()
    def checkpoints_are_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        checkpoints, points = self.native.checkpoints(), self.model.checkpoints
        queue = points.queue()
        assert [(c.block_hash, c.num_tokens, c.is_last) for c in checkpoints] == [
            (point.path[-1], point.end, not points.num_ways(point)) for point in queue
        ]
        values = [point.key.value - points.level for point in queue if point.key]
        assert [c.value for c in checkpoints] == pytest.approx(values, rel=1e-9, abs=1e-9)


TestByValue = ByValueMachine.TestCase
TestByValue.settings = settings(max_examples=40, stateful_step_count=25)
