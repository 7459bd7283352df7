"""Which requests a cache lets in, against its brute-force model, over all sizes of the pool.

Whether a step fits turns on a single block: every count of free blocks is tried.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.spec import EngineDialect

from tests.reference.cache_configs import cache_configs
from tests.reference.cache_model import CacheModel

MOST_TOKENS = 40


def fits(config: CacheConfig, tokens: list[int], need: Need) -> bool:
    """Have a request ask both for its first step; return whether it fitted."""
    native, model = CacheManager(config), CacheModel(config)
    request = native.add(tokens)
    got = native.allocate([replace(need, request=request)])
    expected = model.allocate([replace(need, request=model.add(tokens))])
    assert got.num_fit == expected.num_fit
    assert native.free_queue() == model.free_queue()
    return bool(got.num_fit)


@given(
    config=st.one_of(
        cache_configs(),
        cache_configs(EngineDialect.VLLM, extras=False),
    ),
    num_tokens=st.integers(1, MOST_TOKENS),
    share=st.integers(1, 4),
    in_flight=st.sampled_from((None, 1, 4, 12)),
    lookahead=st.sampled_from((0, 0, 2)),
    is_waiting=st.booleans(),
)
def test_a_request_is_let_in_from_the_same_size_of_the_pool_on(
    config: CacheConfig,
    num_tokens: int,
    share: int,
    in_flight: int | None,
    lookahead: int,
    is_waiting: bool,
) -> None:
    """And from there on in every larger one; `share`: of the request, what the first step does."""
    need = Need(
        request=0,
        num_new_tokens=-(-num_tokens // share),
        num_lookahead_tokens=lookahead,
        full_sequence_must_fit=True,
        is_waiting=is_waiting,
    )
    most = 3 + sum(num_tokens + 3 for _ in config.topology.groups)
    answers = [
        fits(
            replace(config, num_blocks=num_blocks, max_in_flight_tokens=in_flight),
            list(range(num_tokens)),
            need,
        )
        for num_blocks in range(2, most + most // 4)
    ]
    assert answers == sorted(answers)
    assert answers[-1]
