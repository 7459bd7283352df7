"""How long does the look-up of a prompt over a pool and two tiers take?

The prompt has 32 768 tokens, whose hashes are known, and one more to compute. Of each group the
pool holds the first half, host memory the next quarter, and the disk the last. The rival's index
has all blocks in host memory, and it is told how much the pool has: it is measured from there on,
ours over everything.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from kvbraid.cache import BlockPool, CacheConfig, CacheManager
from kvbraid.spec import EngineDialect, Topology

from bench.cache.side import BLOCK, GEMMA3, GPT_OSS, Groups, random_tokens
from bench.harness.measure import Row, Sample, Side, Target

NUM_TOKENS: Final = 32_768
IN_POOL: Final = NUM_TOKENS // 2
IN_HOST: Final = NUM_TOKENS * 3 // 4
REPEATS: Final = 20

Asked = tuple[CacheManager, int, list[BlockPool]]


def index_of(config: CacheConfig, hashes: list[bytes]) -> BlockPool:
    """Return the index of something that has these blocks in every group."""
    index = CacheManager(config)
    for group in range(len(config.topology.groups)):
        for block, block_hash in zip(index.pool.take(len(hashes)), hashes, strict=True):
            index.pool.register(block, group, block_hash, BLOCK)
            index.pool.free([block])
    return index.pool


def asked(groups: Groups) -> Asked:
    """Return a cache, a request that it knows, and the two tiers."""
    config = CacheConfig(
        topology=Topology(groups=groups),
        dialect=EngineDialect.VLLM,
        hash_seed="0",
        num_blocks=len(groups) * NUM_TOKENS // BLOCK + 1,
    )
    cache = CacheManager(config)
    request = cache.add(random_tokens(4, NUM_TOKENS + 1))
    hashes = cache.tiers.block_hashes(request)
    for group in range(len(groups)):
        held = cache.pool.take(IN_POOL // BLOCK)
        for block, block_hash in zip(held, hashes, strict=False):
            cache.pool.register(block, group, block_hash, BLOCK)
        cache.pool.free(held)
    below = {
        "CPU": hashes[IN_POOL // BLOCK : IN_HOST // BLOCK],
        "STORAGE": hashes[IN_HOST // BLOCK :],
    }
    return cache, request, [index_of(replace(config, medium=m), part) for m, part in below.items()]


def ours(groups: Groups) -> Side:
    """Time our look-up."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        cache, request, tiers = asked(groups)

        def sample() -> float:
            begin = time.process_time_ns()
            for _ in range(REPEATS):
                cache.tiers.match_over(request, tiers)
            return (time.process_time_ns() - begin) / REPEATS / 1e3

        yield sample

    return side


def theirs(groups: Groups) -> Any:  # noqa: ANN401 - imported where the rival is installed.
    """Return the rival, asked for the same prompt."""
    from bench.transfer.rival_lookup import RivalOffloading

    return RivalOffloading(groups, random_tokens(4, NUM_TOKENS + 1), IN_POOL)


def rival(groups: Groups) -> Side:
    """Time the rival's: each time it is asked by a request that it does not know yet."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        connector = theirs(groups)

        def sample() -> float:
            requests = [connector.new() for _ in range(REPEATS)]
            begin = time.process_time_ns()
            for request in requests:
                connector.lookup(request)
            return (time.process_time_ns() - begin) / REPEATS / 1e3

        yield sample

    return side


def same_hit(groups: Groups) -> Callable[[], None]:
    """Check that both find the same number of tokens."""

    def check() -> None:
        cache, request, tiers = asked(groups)
        found, connector = cache.tiers.match_over(request, tiers), theirs(groups)
        assert found.num_pool_tokens == IN_POOL, found.num_pool_tokens
        assert found.num_tokens == connector.lookup(connector.new()) == NUM_TOKENS, found

    return check


def row(name: str, groups: Groups) -> Row:
    """Return the row of one model."""
    return Row(
        name=name,
        question=f"32 768 tokens over a pool and two tiers, {len(groups)} groups",
        unit="us CPU",
        ours=ours(groups),
        rival=rival(groups),
        target=Target(ratio=20),
        check=same_hit(groups),
    )


PRELOAD = "bench.transfer.rival_lookup"

ROWS = (row("tier_lookup_gpt_oss", GPT_OSS), row("tier_lookup_gemma_3", GEMMA3))
