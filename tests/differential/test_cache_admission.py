"""Which requests a cache lets in, against its brute-force model, over all sizes of the pool.

Whether a step fits turns on a single block: every count of free blocks is tried.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.ids import BlockId

from tests.reference.cache_configs import BOTH_DIALECTS
from tests.reference.cache_model import CacheModel

MOST_TOKENS = 40


def fits(config: CacheConfig, tokens: list[int], need: Need) -> bool:
    """Have a request ask both for its first step; return whether it fitted."""
    native, model = CacheManager(config), CacheModel(config)
    request = native.add(tokens)
    got = native.allocate([replace(need, request=request)])
    expected = model.allocate([replace(need, request=model.add(tokens))])
    assert got.num_fit == expected.num_fit
    assert native.debug.free_queue() == model.debug.free_queue()
    return bool(got.num_fit)


@given(
    config=BOTH_DIALECTS,
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


@given(
    config=BOTH_DIALECTS,
    num_tokens=st.integers(2, MOST_TOKENS),
    num_loaded=st.integers(0, 6),
    is_waiting=st.booleans(),
)
def test_a_hit_and_a_load_fit_into_as_many_free_blocks(
    config: CacheConfig, num_tokens: int, num_loaded: int, is_waiting: bool
) -> None:
    """Somebody computed the prompt; ever more blocks are taken since."""
    num_blocks = 3 + 2 * sum(num_tokens + 3 for _ in config.topology.groups)
    config = replace(config, num_blocks=num_blocks, max_model_len=1 << 20)
    for num_taken in range(num_blocks - 1):
        native, model = CacheManager(config), CacheModel(config)
        held = leave_free(native, num_tokens, num_taken)
        assert held == leave_free(model, num_tokens, num_taken)
        tokens = list(range(num_tokens + 6))
        ours, other = native.add(tokens), model.add(tokens)
        match = native.match(ours)
        assert match == model.match(other)
        loaded = min(num_loaded, num_tokens + 5 - match.num_tokens)
        need = Need(
            request=ours,
            num_new_tokens=num_tokens + 6 - match.num_tokens - loaded,
            num_hit_tokens=match.num_tokens,
            junction=match.junction,
            num_external_tokens=loaded,
            is_waiting=is_waiting,
        )
        got = native.allocate([need])
        assert got.num_fit == model.allocate([replace(need, request=other)]).num_fit
        assert native.debug.free_queue() == model.debug.free_queue()
        native.take_work()
        native.debug.check_integrity(held)


def leave_free(cache: CacheManager | CacheModel, num_tokens: int, num_taken: int) -> list[BlockId]:
    """Have a prompt computed and so many blocks taken; return those."""
    request = cache.add(list(range(num_tokens)))
    assert cache.allocate([Need(request=request, num_new_tokens=num_tokens)]).num_fit
    cache.take_work()
    cache.start_step()
    cache.release([request])
    taken = cache.pool.take(min(num_taken, len(cache.debug.free_queue())))
    return [BlockId(block) for block in taken]
