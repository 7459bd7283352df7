"""The cache manager against its brute-force model: the same calls, the same cache after each.

Requests of any mix of groups start, run, are rolled back, preempted, forgotten and released in
any order, in pools so small that most steps evict; everything visible must be equal. The native
side is `CacheCore`, and `encode_events` for the bytes of a batch.
"""

from hypothesis import settings
from kvbraid.spec import EngineDialect

from tests.differential.machines import CacheMachine
from tests.reference.cache_configs import cache_configs


class PartialHitMachine(CacheMachine):
    """Hits that end inside blocks, copied on write."""

    configs = cache_configs(ends_inside=True)


class VllmCacheMachine(CacheMachine):
    """The engine's dialect, within what the engine has."""

    configs = cache_configs(EngineDialect.VLLM, extras=False)


TestCacheManager = CacheMachine.TestCase
TestCacheManager.settings = settings(stateful_step_count=25)
TestPartialHits = PartialHitMachine.TestCase
TestPartialHits.settings = settings(max_examples=150, stateful_step_count=25)
TestVllmCacheManager = VllmCacheMachine.TestCase
TestVllmCacheManager.settings = settings(max_examples=60, stateful_step_count=25)
