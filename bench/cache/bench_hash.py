"""How long do the block hashes of a prompt take?

131 072 tokens in blocks of 16 are hashed with sha256 to the engine's own bytes. The rival is the
engine's block hasher, called on a request that has no hash yet.
"""

import contextlib
from array import array
from collections.abc import Iterator
from itertools import count

from kvbraid.hashing import EngineHash, Tokens, block_hashes

from bench.cache.side import BLOCK, random_tokens
from bench.harness.measure import Row, Sample, Side, Target, repeated_cpu_us

NUM_TOKENS = 131_072
ENGINE = EngineHash(block_size=BLOCK)


def ours(*, as_list: bool) -> Side:
    """Ours: a list of hashes, from a uint32 buffer or from a list of ints."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        tokens = random_tokens(1, NUM_TOKENS)
        given: Tokens = tokens if as_list else array("I", tokens)
        yield repeated_cpu_us(lambda: block_hashes(given, ENGINE))

    return side


@contextlib.contextmanager
def theirs() -> Iterator[Sample]:
    """The engine's own block hasher."""
    from bench.cache.rival import HASHER, new_request

    request = new_request(0, random_tokens(1, NUM_TOKENS))
    request.block_hashes = []
    yield repeated_cpu_us(lambda: HASHER(request))


def check() -> None:
    """Check that both sides give the same bytes."""
    from bench.cache.rival import new_request

    tokens = random_tokens(1, NUM_TOKENS)
    expected = [bytes(digest) for digest in new_request(0, tokens).block_hashes]
    for given in (tokens, array("I", tokens)):
        for ours, theirs, block in zip(block_hashes(given, ENGINE), expected, count()):
            assert ours == theirs, f"block {block} differs"


PRELOAD = "bench.cache.rival"

ROWS = (
    Row(
        name="hash_buffer",
        question="block hashes of 131 072 tokens, sha256, from a uint32 buffer",
        unit="us CPU",
        ours=ours(as_list=False),
        rival=theirs,
        target=Target(ratio=8),
        check=check,
    ),
    Row(
        name="hash_list",
        question="the same from a Python list of ints",
        unit="us CPU",
        ours=ours(as_list=True),
        rival=theirs,
        target=Target(ratio=5),
        check=check,
    ),
)
