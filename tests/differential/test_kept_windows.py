"""Placing by an engine's retention, against a cache that retains as the engine does.

Our cache runs random prompts over groups of unequal blocks and publishes its events; an index that
does not know the hash function predicts every hit before it happens. If the index is told the
retention, its bounds contain the same truth, and no bound is wider than without it.
"""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache import CacheManager
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.retention import Dense, Interval, Retention
from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

POD = PodId("pod")
FULL = SpecKind.FULL_ATTENTION
WINDOW = SpecKind.SLIDING_WINDOW
JOIN = IndexOptions(keys="join")


@st.composite
def unequal_blocks(draw: st.DrawFn) -> tuple[GroupSpec, ...]:
    """A full group of large blocks, and one or two windows of smaller ones."""
    unit = draw(st.sampled_from((1, 2)))
    large = unit * draw(st.sampled_from((2, 4, 6)))
    eagle = draw(st.booleans())
    groups = [GroupSpec(kind=FULL, block_size=large, eagle=eagle)]
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.sampled_from([unit * n for n in (1, 2, 3) if large % (unit * n) == 0]))
        window = draw(st.integers(2, 2 * large + 1))
        groups.append(
            GroupSpec(
                kind=WINDOW, block_size=size, window=window, eagle=eagle and draw(st.booleans())
            )
        )
    draw(st.randoms()).shuffle(groups)
    return tuple(groups)


def prompts(random: Random, length: int) -> list[tuple[int, ...]]:
    """Prompts that share stems, from few letters."""
    made: list[tuple[int, ...]] = [()]
    for _ in range(4):
        stem = random.choice(made)
        stem = stem[: random.randint(0, len(stem))]
        tail = random.randint(1, max(1, length - len(stem)))
        made.append(stem + tuple(random.randrange(3) for _ in range(tail)))
    return made[1:]


def bounds(index: FleetIndex, prompt: Sequence[int]) -> tuple[int, int]:
    (row,) = index.score(Request(model="m", token_ids=prompt)).rows
    index.check_integrity()
    assert row.state is PodState.EXACT
    return row.lower, row.upper


@given(
    seed=st.integers(0, 2**32),
    groups=unequal_blocks(),
    interval=st.sampled_from((None, 0, 0, 1, 2)),
    num_blocks=st.sampled_from((160, 600)),
    step_tokens=st.sampled_from((7, 16, 1000)),
)
def test_what_the_retention_places_is_where_the_engine_put_it(
    seed: int,
    groups: tuple[GroupSpec, ...],
    interval: int | None,
    num_blocks: int,
    step_tokens: int,
) -> None:
    random = Random(seed)
    alignment = max(group.block_size for group in groups)
    retention: Retention = Dense() if interval is None else Interval(interval * alignment)
    cache = CacheManager(
        CacheConfig(
            topology=Topology(groups=groups),
            dialect=EngineDialect.VLLM,
            num_blocks=num_blocks,
            events=True,
            retention=retention,
        )
    )
    told = FleetIndex(JOIN)
    told.register(
        POD, model="m", topology=Topology(groups=groups), engine=EngineProfile(retention=0)
    )
    untold = FleetIndex(JOIN)
    untold.register(POD, model="m", topology=Topology(groups=groups))
    payloads: list[bytes] = []
    scheduler = OneByOne(
        cache,
        max_step_tokens=step_tokens,
        publish=lambda events: payloads.append(events.to_bytes(0.0, 0)),
    )
    known = prompts(random, 5 * alignment)
    for _ in range(12):
        prompt = random.choice(known)
        prompt = prompt[: random.randint(1, len(prompt))] if random.random() < 0.3 else prompt
        narrow, wide = bounds(told, prompt), bounds(untold, prompt)
        hit = scheduler.run(prompt, [random.randrange(3) for _ in range(random.choice((1, 9)))])
        assert narrow[0] <= hit <= narrow[1]
        assert wide[0] <= narrow[0]
        assert narrow[1] <= wide[1]
        for payload in payloads:
            told.apply(POD, payload)
            untold.apply(POD, payload)
        payloads.clear()
