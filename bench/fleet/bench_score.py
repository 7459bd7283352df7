"""How long does it take to score one request, including its hashing?

64 pods share the prefix, in blocks of 16 tokens. The rival hashes the same tokens and matches them
in its `RadixTree`. It has only one kind of group, so rows with several groups compare ours with
ours.
"""

import contextlib
from array import array
from collections.abc import Iterator

import numpy as np
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.spec import GroupSpec, SpecKind

from bench.fleet.ours import FULL, apply_all, new_index
from bench.fleet.rival import Tree, tree_events
from bench.fleet.streams import (
    NUM_PODS,
    Batch,
    Chain,
    Event,
    batch,
    prefill_events,
    stored,
)
from bench.harness.measure import Row, Sample, Side, Target, repeated_us

WINDOW = 1_024
WINDOW_GROUP = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=WINDOW)
TAIL = 5  # Tokens after the last whole block, as in real prompts.


def to_all_pods(events: list[Event]) -> Iterator[Batch]:
    """Every pod publishes the same events."""
    message = batch(0, events)
    for pod in range(NUM_PODS):
        yield Batch(pod, message.payload, message.num_events, message.num_stored)


def prompt_of(chain: Chain) -> list[int]:
    """Return the chain's tokens and a tail shorter than a block."""
    return [*chain.tokens.tolist(), *range(TAIL)]


def score(index: FleetIndex, token_ids: "list[int] | array[int]", expected: int) -> Sample:
    """Check the answer once, then sample the time of a score."""
    request = Request(model="model", token_ids=token_ids)
    rows = index.score(request).rows
    assert [row.lower for row in rows] == [expected] * NUM_PODS
    return repeated_us(lambda: index.score(request))


def ours_shared(num_tokens: int, *, as_list: bool = False) -> Side:
    """One full group; every pod holds the whole prompt."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), num_tokens // 16)
        index = new_index()
        apply_all(index, to_all_pods(prefill_events(chain, 0, len(chain))))
        tokens = prompt_of(chain)
        yield score(index, tokens if as_list else array("I", tokens), num_tokens)

    return side


def rival_shared(num_tokens: int) -> Side:
    """The rival's hashing and matching of the same prompt."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), num_tokens // 16)
        tree = Tree()
        tree.apply(tree_events(to_all_pods(prefill_events(chain, 0, len(chain)))))
        tokens = prompt_of(chain)
        yield repeated_us(lambda: tree.find(tokens))

    return side


@contextlib.contextmanager
def six_groups() -> Iterator[Sample]:
    """One full group and five windows of 1 024 tokens."""
    chain = Chain.random(np.random.default_rng(1), 512)
    index = new_index(FULL, *[WINDOW_GROUP] * 5)
    events = prefill_events(chain, 0, 512)
    for group in range(1, 6):
        events += [
            stored(chain, i, i + 128, group=group, kind="sliding_window", window=WINDOW)
            for i in range(0, 512, 128)
        ]
    apply_all(index, to_all_pods(events))
    yield score(index, array("I", prompt_of(chain)), 8_192)


def known_hash_function(*, waiting: bool) -> Side:
    """Pods with a configured hash function. With `waiting`, each also has a chain whose parent is
    unknown."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        rng = np.random.default_rng(1)
        chain, orphan = (Chain.hashed(rng, n, seed="0") for n in (512, 64))
        index = new_index(hash_seed="0")
        events = prefill_events(chain, 0, 512)
        if waiting:
            events.append(stored(orphan, 32, 64))
        apply_all(index, to_all_pods(events))
        yield score(index, array("I", prompt_of(chain)), 8_192)

    return side


ROWS = (
    Row(
        name="score_8k",
        question="8 192 tokens from a uint32 buffer, one full group",
        unit="us",
        ours=ours_shared(8_192),
        rival=rival_shared(8_192),
        target=Target(ratio=5),
    ),
    Row(
        name="score_8k_list",
        question="the same from a Python list of ints",
        unit="us",
        ours=ours_shared(8_192, as_list=True),
        rival=rival_shared(8_192),
        target=Target(ratio=1.7),
    ),
    Row(
        name="score_128k",
        question="131 072 tokens from a uint32 buffer, one full group",
        unit="us",
        ours=ours_shared(131_072),
        rival=rival_shared(131_072),
        target=Target(ratio=5),
    ),
    Row(
        name="score_6_groups",
        question="8 192 tokens, 1 full + 5 window groups; `rival` is our own one-group time",
        unit="us",
        ours=six_groups,
        rival=ours_shared(8_192),
        target=Target(ratio=0.5),
    ),
    Row(
        name="score_query_means",
        question="8 192 tokens, sha256 known, pods hold unplaced entries; `rival` is ours without",
        unit="us",
        ours=known_hash_function(waiting=True),
        rival=known_hash_function(waiting=False),
    ),
)
