"""The cache under retention by value against its brute-force model, as in `test_cache_manager`.

After every step the checkpoints are compared too: which ones exist, in which order they would be
evicted, and what each is worth. Lives in which the cache has learned a length at which requests
branch off are left out, and nothing is said of ends: the model knows neither heuristic.
"""

from dataclasses import replace
from math import lcm

import pytest
from hypothesis import reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from kvbraid.cache import ByValue, CacheConfig, Lean
from kvbraid.ids import BlockId
from kvbraid.models import PrefillCost

from tests.differential.test_cache_manager import CacheMachine
from tests.reference.cache_by_value import ByValueModel
from tests.reference.cache_configs import BOTH_DIALECTS
from tests.unit.cache.caches import chunked, config, full, mamba, window

MIXES = (
    [full(4)],
    [full(4), full(4)],
    [full(4), window(9, 4)],
    [full(4), mamba(4)],
    [full(4), window(5, 4), mamba(4)],
    [full(4), chunked(8, 4), window(6, 4)],
    [full(4, eagle=True), window(9, 4)],
    [full(4), window(6, 4, eagle=True)],
    [full(4), full(8)],
    [full(4), mamba(8)],
    [full(8), window(6, 4)],
    [full(4), full(6)],
    [mamba(4)],
    [window(9, 4), window(14, 4)],
    [window(6, 4), mamba(4)],
)
"""Groups with many boundaries in few tokens: most requests make checkpoints."""


@st.composite
def by_value_configs(draw: st.DrawFn, leans: st.SearchStrategy[Lean]) -> CacheConfig:
    """Those, or any groups."""
    few = st.sampled_from(MIXES).map(lambda groups: config(*groups))
    drawn = draw(st.one_of(few, few, BOTH_DIALECTS, BOTH_DIALECTS))
    alignment = drawn.topology.alignment or lcm(*(g.block_size for g in drawn.topology.groups))
    cost = PrefillCost(draw(st.sampled_from((1.0, 0.5))), draw(st.sampled_from((0.0, 0.1))))
    interval = alignment * draw(st.sampled_from((0, 1, 2, 4)))
    return replace(
        drawn,
        num_blocks=draw(st.sampled_from((8, 14, 20, 30, 60))),
        retention=ByValue(interval=interval, cost=cost, lean=draw(leans)),
    )


class ByValueMachine(CacheMachine):
    """The checkpoints too."""

    configs = by_value_configs(st.sampled_from(Lean))
    model_of = ByValueModel
    model: ByValueModel
    hints = st.none()

    def forgettable(self) -> st.SearchStrategy[BlockId]:
        """Mostly blocks that are cached: what checkpoints need is among them."""
        cached = sorted({block for row in self.native.debug.cached().values() for block in row})
        ids = super().forgettable()
        return st.one_of(st.sampled_from(cached), ids) if cached else ids

    def has_learned_a_length(self) -> bool:
        """Whether steps of a request that comes now would end there."""
        request = self.native.add([0])
        stops = self.native._core.stops(request)
        self.native.release([request])
        return bool(stops)

    @invariant()
    def checkpoints_are_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        if self.has_learned_a_length():
            reject()
        checkpoints, points = self.native.debug.checkpoints(), self.model.checkpoints
        queue = points.queue()
        assert [(c.block_hash, c.num_tokens, c.is_last) for c in checkpoints] == [
            (point.path[-1], point.end, not points.num_ways(point)) for point in queue
        ]
        values = [point.key.value - points.level for point in queue if point.key]
        assert [c.value for c in checkpoints] == pytest.approx(values, rel=1e-9, abs=1e-9)


TestByValue = ByValueMachine.TestCase
TestByValue.settings = settings(max_examples=100, stateful_step_count=25)
