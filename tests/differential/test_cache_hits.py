"""Hits of a cache with holes against its brute-force model.

The state machine in `test_cache_manager.py` mostly meets caches that hold all of a prompt, or
nothing. Here any block that an eviction could have taken may be missing, group by group, so the
groups disagree about where a request can resume.
"""

from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, GroupOptions
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.differential.holes import EXAMPLES, MOST_TOKENS, Both, step_ends
from tests.reference.cache_configs import cache_configs

WINDOW_OF_ONE = CacheConfig(
    topology=Topology(
        groups=(
            GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=3, window=1, eagle=True),
            GroupSpec(kind=SpecKind.MAMBA, block_size=6),
        ),
        alignment=6,
        hash_block_size=3,
        partial_hits=True,
    ),
    num_blocks=8,
    dialect=EngineDialect.VLLM,
    group_options=(GroupOptions(extra_retained_tokens=3), GroupOptions()),
    num_reprefillable_tokens=1,
)
"""The last block of a hit is found by the search, kept as one more token, and read by nobody."""


def compare(config: CacheConfig, random: Random) -> None:
    both, unit = Both(config), config.topology.hash_block_size or 1
    prompt = [random.randrange(2) for _ in range(random.randint(8, MOST_TOKENS))]
    both.run(prompt, step_ends(random, unit))
    for _ in range(3):
        both.punch(random)
        for _ in range(8):
            both.look(prompt[: random.randint(1, len(prompt))])
        shared = random.randint(1, len(prompt))
        both.run([*prompt[:shared], 7, 7, 7][:MOST_TOKENS], ())


@EXAMPLES
@given(config=cache_configs(), seed=st.integers(0, 2**32))
def test_hits_in_front_of_holes_are_the_rules(config: CacheConfig, seed: int) -> None:
    compare(config, Random(seed))


@EXAMPLES
@given(config=cache_configs(EngineDialect.VLLM, extras=False), seed=st.integers(0, 2**32))
@example(config=WINDOW_OF_ONE, seed=0)
def test_hits_in_front_of_holes_are_the_engines(config: CacheConfig, seed: int) -> None:
    compare(config, Random(seed))
