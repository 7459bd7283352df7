"""A state that a step kept inside a block is garbage with its step, though only a copy has it."""

from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.loads import Failures
from kvbraid.recovery import Run, assess

from tests.unit.recovery.topologies import STATES_INSIDE


def test_a_copy_of_a_state_that_was_kept_inside_a_block_is_tainted() -> None:
    cache = CacheManager(CacheConfig(num_blocks=20, topology=STATES_INSIDE))
    request = cache.add(range(21))
    held = set[int]()
    for tokens, loaded in ((4, 16), (1, 0)):
        cache.start_step()
        need = Need(request=request, num_new_tokens=tokens, num_external_tokens=loaded)
        assert cache.allocate([need]).num_fit
        held |= {block for table in cache.blocks(request) for block in table}
    found = {block for blocks in cache.debug.cached().values() for block in blocks}
    (copy,) = found - held
    run = Run(
        request=request,
        num_tokens=21,
        num_prompt_tokens=21,
        num_known_tokens=21,
        num_local_tokens=0,
        num_loaded_tokens=16,
        num_processed_tokens=16,
        num_computed_tokens=21,
    )

    tainted = assess(cache, [run], Failures(places={request: {0: [0]}})).tainted

    assert copy in tainted
