"""How long does the `weighted_blocks` strategy take?

The workload is that of existing gateways' scorers: 32 pods x 512 keys of 16 tokens, and everything
is hit. There are three cases: one ungrouped entry per block (legacy); a full and a window group
(hybrid); two windows that alternate, where each refuses every prefix that the other accepts, down
to the first block (worst).
"""

import contextlib
from array import array
from collections.abc import Iterator

import numpy as np
from kvbraid.fleet.request import Request
from kvbraid.spec import GroupSpec, SpecKind

from bench.fleet.ours import FULL, apply_all, new_index
from bench.fleet.streams import Batch, Chain, Event, batch, prefill_events, stored
from bench.harness.measure import Row, Sample, Side, Target, repeated_us

NUM_PODS = 32
NUM_KEYS = 512
WINDOW = 1_024
ONE_BLOCK = 17
TWO_BLOCKS = 32


def window_group(window: int) -> GroupSpec:
    """Return a sliding-window group."""
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=window)


def window_store(
    chain: Chain, begin: int, end: int, *, group: int = 1, window: int = WINDOW
) -> Event:
    """Return a dense store of a window group."""
    return stored(chain, begin, end, group=group, kind="sliding_window", window=window)


def legacy_events(chain: Chain) -> list[Event]:
    """Return stores as engines without groups publish them."""
    names = ("group_idx", "kv_cache_spec_kind")
    return [
        {key: value for key, value in event.items() if key not in names}
        for event in prefill_events(chain, 0, NUM_KEYS)
    ]


def hybrid_events(chain: Chain) -> list[Event]:
    """Return stores of every block in both groups."""
    return [*prefill_events(chain, 0, NUM_KEYS), window_store(chain, 0, NUM_KEYS)]


def alternating_events(chain: Chain) -> list[Event]:
    """Return a full group and two windows that accept no common prefix except the shortest.

    ```text
    block           0 1 2 3 4 5 6 7
    one block (g1)  x . x x x . x x     accepts every prefix but those of 2, 6, ... blocks
    two blocks (g2) x x . . x x . .     accepts prefixes of 1, 2, 6, ... blocks
    ```
    """
    events = prefill_events(chain, 0, NUM_KEYS)
    for block in range(0, NUM_KEYS, 4):
        events += [
            window_store(chain, block, block + 1, window=ONE_BLOCK),
            window_store(chain, block + 2, block + 4, window=ONE_BLOCK),
            window_store(chain, block, block + 2, group=2, window=TWO_BLOCKS),
        ]
    return events


def weighted(*groups: GroupSpec, events: str) -> Side:
    """The time of one score; `events` names the function that makes the stores."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        chain = Chain.random(np.random.default_rng(1), NUM_KEYS)
        message = batch(0, STREAMS[events](chain))
        index = new_index(*groups, num_pods=NUM_PODS)
        apply_all(
            index,
            (
                Batch(pod, message.payload, message.num_events, message.num_stored)
                for pod in range(NUM_PODS)
            ),
        )
        request = Request(
            model="model",
            token_ids=array("I", [*chain.tokens.tolist(), 1]),
            strategy="weighted_blocks",
        )
        scores = [row.score for row in index.score(request).rows]
        assert scores == [SCORES[events]] * NUM_PODS, scores
        yield repeated_us(lambda: index.score(request))

    return side


STREAMS = {"legacy": legacy_events, "hybrid": hybrid_events, "alternating": alternating_events}
SCORES = {"legacy": NUM_KEYS, "hybrid": NUM_KEYS, "alternating": 1}

ROWS = (
    Row(
        name="weighted_legacy",
        question="ungrouped entries, all hit",
        unit="us",
        ours=weighted(FULL, events="legacy"),
    ),
    Row(
        name="weighted_hybrid",
        question="full and window groups, all hit",
        unit="us",
        ours=weighted(FULL, window_group(WINDOW), events="hybrid"),
    ),
    Row(
        name="weighted_worst",
        question="two windows that alternate; `rival` is our own weighted_hybrid",
        unit="us",
        ours=weighted(
            FULL, window_group(ONE_BLOCK), window_group(TWO_BLOCKS), events="alternating"
        ),
        rival=weighted(FULL, window_group(WINDOW), events="hybrid"),
        target=Target(ratio=2 / 3),
    ),
)
