"""How long does a request take from its tokens to its events?

A request hashes, matches, allocates, commits, releases and takes the events, with Gemma 3's six
groups. Requests share eight prefixes of 4 096 tokens in turn. Every measured request finds its
prefix and has 4 096 tokens of its own, for which the pool evicts blocks. Our events are encoded to
wire bytes; the rival's stay structures, which its publisher encodes later. As in all cache rows,
CPU time is measured.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from bench.cache.ours import Ours, OursWithStructs
from bench.cache.pair import agree, rival
from bench.cache.side import GEMMA3, AnyCache, Factory, random_tokens
from bench.harness.measure import Row, Sample, Side, Target

NUM_PREFIXES = 8
PREFIX_TOKENS = 4_096
OWN_TOKENS = 4_096
NUM_BLOCKS = 26_000
"""Room for little more than the first turn, which finds nothing and takes 24 576 blocks."""

WARM_REQUESTS = 4 * NUM_PREFIXES
"""From the second turn on the pool evicts."""

PER_SAMPLE = 2 * NUM_PREFIXES


def requests() -> Iterator[list[int]]:
    """Yield the tokens of one request after the other."""
    prefixes = [random_tokens(number, PREFIX_TOKENS) for number in range(NUM_PREFIXES)]
    for number, prefix in zip(itertools.count(NUM_PREFIXES), itertools.cycle(prefixes)):
        yield prefix + random_tokens(number, OWN_TOKENS)


def serve(cache: AnyCache, tokens: list[int]) -> tuple[int, object]:
    """Run one request through the cache; return its hit and the events."""
    cache.start_step()
    request = cache.add(tokens)
    hit = cache.match(request)
    cache.allocate(request, len(tokens) - hit.num_tokens, hit)
    cache.release(request)
    return hit.num_tokens, cache.take_events()


def warmed(new: Factory, num_warm: int = WARM_REQUESTS) -> tuple[AnyCache, Iterator[list[int]]]:
    """Return a cache that already evicts, and the requests that follow."""
    cache, stream = new(GEMMA3, NUM_BLOCKS, events=True), requests()
    for tokens in itertools.islice(stream, num_warm):
        serve(cache, tokens)
    return cache, stream


def loop(new: Factory, num_warm: int = WARM_REQUESTS) -> Side:
    """The mean time of a request over two turns of the prefixes, after so many requests."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        cache, stream = warmed(new, num_warm)

        def sample() -> float:
            prompts = list(itertools.islice(stream, PER_SAMPLE))
            begin = time.thread_time_ns()
            hits = [serve(cache, tokens)[0] for tokens in prompts]
            elapsed_us = (time.thread_time_ns() - begin) / 1_000
            assert hits == [PREFIX_TOKENS] * PER_SAMPLE, hits
            return elapsed_us / PER_SAMPLE

        yield sample

    return side


def served(new: Factory) -> object:
    """Return hits, event bytes and free blocks of each request, once the cache evicts."""
    cache, stream = warmed(new)
    log = []
    for tokens in itertools.islice(stream, PER_SAMPLE):
        hit, events = serve(cache, tokens)
        assert hit == PREFIX_TOKENS, hit
        encoded = cache.encoded(events)
        assert b"BlockRemoved" in encoded
        log.append((hit, cache.num_free_blocks(), encoded))
    return log


check: Callable[[], None] = agree(served)

PRELOAD = "bench.cache.rival"

ROWS = (
    Row(
        name="end_to_end",
        question="a request of 8 192 tokens, 4 096 of them shared, eviction, events as wire bytes",
        unit="us CPU",
        ours=loop(Ours),
        rival=loop(rival),
        target=Target(ratio=20),
        check=check,
    ),
    Row(
        name="end_to_end_structs",
        question="the same with events as Python structures on both sides",
        unit="us CPU",
        ours=loop(OursWithStructs),
        rival=loop(rival),
        check=check,
    ),
)
