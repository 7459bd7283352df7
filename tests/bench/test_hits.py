"""The rows `hit_rate_*` without their rival: what is reused if memory is just enough."""

import pytest
from kvbraid.cache import ByValue, EvictionPolicy, Retention

from bench.cache.bench_hits import hit_rate
from bench.cache.ours import Ours, OursByValue
from bench.cache.side import GEMMA3, GPT_OSS, QWEN3_NEXT, Groups


class OursByFixedValue(Ours):
    @staticmethod
    def _retention(interval: int | None) -> Retention:
        return ByValue(interval=interval or 0, policy=EvictionPolicy.VALUE)


@pytest.mark.parametrize("groups", [GEMMA3, GPT_OSS, QWEN3_NEXT])
@pytest.mark.parametrize(("share", "least"), [(1.0, 0.99), (0.75, 0.55)])
def test_a_new_cache_loses_nothing_before_it_knows_where_to_lean(
    groups: Groups, share: float, least: float
) -> None:
    """Conversations fill it before the first one goes on, so simulated caches know nothing."""
    rate = hit_rate(OursByValue, groups, share, 8_192)
    assert rate >= max(least, hit_rate(OursByFixedValue, groups, share, 8_192))
