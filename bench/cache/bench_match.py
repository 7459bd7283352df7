"""How long does the look-up of a prompt take if its hashes are known?

The warm prompts have 8 192 tokens and are held in every group as one prefill leaves them. In the
adversarial case the engine's search for a common boundary goes down by one block per round: of two
windows of one block, one is held at odd blocks and the other at even blocks, so nothing can be
reused in the end.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from bench.cache.ours import Ours
from bench.cache.pair import agree, rival
from bench.cache.side import (
    BLOCK,
    FULL,
    FULL_ONLY,
    GEMMA3,
    GPT_OSS,
    QWEN3_NEXT,
    AnyCache,
    Factory,
    Groups,
    prefill,
    random_tokens,
    window,
)
from bench.harness.measure import Row, Sample, Side, Target, repeated_cpu_us

NUM_TOKENS = 8_192
NUM_ADVERSARIAL = 131_072

ALTERNATING: Groups = (FULL, window(BLOCK), window(BLOCK + 1))

Prepared: TypeAlias = tuple[AnyCache, Any]
"""A cache, and a request that the cache knows and that holds no block."""

Prepare: TypeAlias = Callable[[Factory], Prepared]


def warm(groups: Groups) -> Prepare:
    """Hold one prompt in every group."""

    def prepare(new: Factory) -> Prepared:
        tokens = random_tokens(2, NUM_TOKENS)
        cache = new(groups, 2 * len(groups) * NUM_TOKENS // BLOCK)
        first, _ = prefill(cache, groups, tokens)
        cache.release(first)
        return cache, cache.add(tokens)

    return prepare


def adversarial(num_tokens: int) -> Prepare:
    """Hold a whole prompt in the full group, only its odd blocks in one window group, and only its
    even blocks in the other."""

    def prepare(new: Factory) -> Prepared:
        tokens = random_tokens(3, num_tokens)
        cache = new(ALTERNATING, len(ALTERNATING) * (num_tokens // BLOCK + 1))
        first = cache.add(tokens)
        cache.allocate(first, num_tokens)
        _, odd, even = cache.blocks(first)
        cache.forget([*odd[0::2], *even[1::2]])
        cache.release(first)
        return cache, cache.add(tokens)

    return prepare


def match(new: Factory, prepare: Prepare, per: int = 1) -> Side:
    """Time one look-up; the time is divided by `per`."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        cache, request = prepare(new)
        sample = repeated_cpu_us(lambda: cache.match(request))
        yield lambda: sample() / per

    return side


def found(prepare: Prepare) -> Callable[[], None]:
    """Check that both sides find the same hit, and that it is the one in the row's question."""

    def work(new: Factory) -> object:
        cache, request = prepare(new)
        return cache.match(request)

    return agree(work)


def row(name: str, groups: Groups) -> Row:
    """Return the row of a warm prompt of one model."""
    prepare = warm(groups)
    return Row(
        name=name,
        question=f"a warm prompt of 8 192 tokens, {len(groups)} groups",
        unit="us CPU",
        ours=match(Ours, prepare),
        rival=match(rival, prepare),
        target=Target(ratio=20),
        check=found(prepare),
    )


PRELOAD = "bench.cache.rival"

ROWS = (
    row("match_full", FULL_ONLY),
    row("match_gptoss", GPT_OSS),
    row("match_gemma3", GEMMA3),
    row("match_qwen3next", QWEN3_NEXT),
    Row(
        name="match_adversarial",
        question="131 072 tokens, two windows that alternate: an agreement falls block by block",
        unit="us CPU",
        ours=match(Ours, adversarial(NUM_ADVERSARIAL)),
        rival=match(rival, adversarial(NUM_ADVERSARIAL)),
        target=Target(ratio=100),
        check=found(adversarial(NUM_ADVERSARIAL)),
        samples=5,
    ),
    Row(
        name="match_adversarial_growth",
        question="the same per 1 024 tokens of 1 048 576; `rival` is ours per 1 024 of 8 192",
        unit="us CPU",
        ours=match(Ours, adversarial(1_048_576), per=1_024),
        rival=match(Ours, adversarial(8_192), per=8),
    ),
)
