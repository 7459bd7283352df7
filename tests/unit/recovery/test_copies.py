"""Copies of the same tokens by several requests: each is what its own request has written."""

from kvbraid.cache import CacheManager, Need
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import GivenBack, Run, assess, snapshot_of

from tests.unit.cache.caches import config, window

TOKENS = list(range(40))


def computed(cache: CacheManager, num_loaded: int) -> tuple[int, list[BlockId]]:
    """A request that hits nothing, and its first blocks; the window has passed most of them."""
    request, blocks = cache.add(TOKENS), list[BlockId]()
    steps = [(num_loaded, 24 - num_loaded), (0, 16)]
    for loaded, new in steps:
        cache.start_step()
        need = Need(request=request, num_new_tokens=new, num_external_tokens=loaded)
        assert cache.allocate([need]).num_fit
        blocks = blocks or cache.blocks(request)[0]
    return request, blocks


def test_a_healthy_copy_of_a_request_that_has_left_is_not_taken_for_the_failed_one() -> None:
    cache = CacheManager(config(window(8, 4)))
    healthy, healthy_blocks = computed(cache, 0)
    cache.release([healthy])
    request, blocks = computed(cache, 8)
    run = Run(
        request=request,
        num_tokens=40,
        num_prompt_tokens=40,
        num_known_tokens=40,
        num_local_tokens=0,
        num_loaded_tokens=8,
        num_processed_tokens=24,
        num_computed_tokens=40,
        given_back=[GivenBack(0, 1, blocks[1])],
    )
    for source in (cache, snapshot_of(cache, [run])):
        tainted = {*assess(source, [run], Failures(requests=[request])).tainted}
        assert tainted.isdisjoint(healthy_blocks)
        assert tainted > {*blocks[1:]}, "what was given back is findable garbage, too"
