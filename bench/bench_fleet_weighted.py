"""How long does the `weighted_blocks` strategy take?

The scorer workload of existing gateways: 32 pods x 512 keys of 16 tokens, everything hit; one
ungrouped entry per block (legacy), a full and a window group (hybrid), and windows that are broken
again and again just before they are long enough (worst).
"""

import contextlib
from array import array
from collections.abc import Iterator

import numpy as np
from kvbraid.fleet.request import Request
from kvbraid.spec import GroupSpec, SpecKind

from bench.measure import Row, Sample, Side, Target, repeated_us
from bench.ours import FULL, apply_all, new_index
from bench.streams import Batch, Chain, Event, batch, prefill_events, stored

NUM_PODS = 32
NUM_KEYS = 512
WINDOW = 1_024
WINDOW_GROUP = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=WINDOW)


def window_store(chain: Chain, begin: int, end: int) -> Event:
    """Return a dense store of the window group."""
    return stored(chain, begin, end, group=1, kind="sliding_window", window=WINDOW)


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
    """Return a full group, and runs of the window group one block too short, with holes."""
    runs = [
        window_store(chain, begin, min(begin + 63, NUM_KEYS)) for begin in range(0, NUM_KEYS, 64)
    ]
    return [*prefill_events(chain, 0, NUM_KEYS), *runs]


def weighted(*groups: GroupSpec, events: str) -> Side:
    """Time of one score; `events` names the function that makes the stores."""

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
        assert len(index.score(request).rows) == NUM_PODS
        yield repeated_us(lambda: index.score(request))

    return side


STREAMS = {"legacy": legacy_events, "hybrid": hybrid_events, "alternating": alternating_events}

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
        ours=weighted(FULL, WINDOW_GROUP, events="hybrid"),
    ),
    Row(
        name="weighted_worst",
        question="window runs one block too short; `rival` is our own weighted_hybrid",
        unit="us",
        ours=weighted(FULL, WINDOW_GROUP, events="alternating"),
        rival=weighted(FULL, WINDOW_GROUP, events="hybrid"),
        target=Target(ratio=2 / 3),
    ),
)
