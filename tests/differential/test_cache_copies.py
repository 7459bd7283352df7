"""Several blocks of the same hash, against the brute-force model: the oldest one is found.

Random lives seldom hold three copies of one hash; here every case does.
"""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.cache import CacheManager, Need

from tests.reference.cache_model import CacheModel
from tests.unit.cache.caches import config, full, window

TOKENS = list(range(9))
NUM_COPIES = 4


@given(order=st.permutations(range(NUM_COPIES)))
@example(order=list(range(NUM_COPIES)))
def test_the_oldest_copy_that_is_left_is_found(order: list[int]) -> None:
    """Requests that know nothing of each other compute the same; then copies are forgotten."""
    setup = config(full(4), window(6, 4))
    native, model = CacheManager(setup), CacheModel(setup)
    for cache in (native, model):
        for _ in range(NUM_COPIES):
            need = Need(request=cache.add(TOKENS), num_new_tokens=len(TOKENS))
            assert cache.allocate([need]).num_fit == 1
    copies = list(native.debug.cached().values())
    assert all(len(blocks) == NUM_COPIES for blocks in copies)
    assert all(one < other for blocks in copies for one, other in pairwise(blocks))
    for copy in order:
        for cache in (native, model):
            cache.pool.forget([blocks[copy] for blocks in copies])
        assert native.debug.cached() == model.debug.cached()
        native.debug.check_integrity()
    assert not native.debug.cached()
