"""Groups of one kind and size that the engine distinguishes, and looks up separately."""

from dataclasses import replace

import pytest
from kvbraid.cache import CacheManager
from kvbraid.errors import TopologyError
from kvbraid.spec import told_apart

from tests.unit.cache.caches import config, full, leave, window

TOKENS = list(range(21))


@pytest.mark.parametrize(("variant", "junction"), [(0, 0), (1, 20)])
def test_the_groups_asked_first_are_those_like_the_first_full_one(
    variant: int, junction: int
) -> None:
    cache = CacheManager(config(full(4), replace(full(4), variant=variant)))
    leave(cache, TOKENS, 4)
    request = cache.add(TOKENS)
    cache.pool.forget([cache.hit_blocks(request, 20)[1][-1]])
    match = cache.match(request)
    assert (match.num_tokens, match.junction) == (16, junction)


def test_variants_are_numbered_among_equal_groups() -> None:
    groups = (full(4), window(8, 4), full(4), full(4, eagle=True), full(4))
    numbered = told_apart(groups, by=["float16", "int8", "int8", "float16", "float16"])
    assert [group.variant for group in numbered] == [0, 0, 1, 0, 0]
    assert [replace(group, variant=0) for group in numbered] == list(groups)


def test_a_variant_below_0_is_refused() -> None:
    with pytest.raises(TopologyError, match="variant is -1"):
        replace(full(4), variant=-1)
