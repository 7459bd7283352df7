"""Groups learned from events: the order in which groups are published never changes an answer.

The same events are published to two indexes. In one, the groups of each batch come in the engine's
order, in the other in any order; the events of one group keep their order. Nothing is promised
before a prompt had four blocks of the smallest size. Then, once every group has shown a whole
block, both answer like an index whose groups are configured. Copies told by hash alone while the
blocks of their group looked smaller may be of whole blocks or not: with their tiers, answers are
bounds around that.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events import encode_batch
from kvbraid.events.model import AllBlocksCleared, BlockStored, Event
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId, PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_index import Prefix
from tests.reference.fleet_traffic import Engine, Habits, Hashes

SEED = "7"
POD = PodId("pod")
OPTIONS = IndexOptions(secret=bytes(range(32)))
"""What fails once fails again."""
KINDS = (SpecKind.FULL_ATTENTION, SpecKind.SLIDING_WINDOW, SpecKind.MAMBA)


@st.composite
def told_by_events(draw: st.DrawFn) -> Topology:
    """Groups of which events tell everything: no chunks, no draft heads, the usual alignment."""
    unit = draw(st.sampled_from((2, 4)))  # 1 would say nothing to learned groups.
    ratios = draw(st.sampled_from(((1, 2), (2, 1, 4), (2, 3), (1,))))
    chosen = []
    for _ in range(draw(st.integers(1, 4))):
        kind, size = draw(st.sampled_from(KINDS)), unit * draw(st.sampled_from(ratios))
        window = draw(st.integers(2, 3 * size)) if kind.is_window else None
        chosen.append(GroupSpec(kind=kind, block_size=size, window=window))
    return Topology(
        groups=tuple(chosen),
        hash_block_size=unit,
        partial_hits=draw(st.booleans()),
    )


HABITS = st.builds(
    Habits,
    sparse=st.sampled_from((0.0, 0.3, 0.6)),
    orphan=st.sampled_from((0.0, 0.3)),
    partial=st.sampled_from((0.0, 0.5)),
    other_tier=st.sampled_from((0.0, 0.2)),
    unknown_removal=st.just(0.0),
)


def in_other_order(events: Sequence[Event], random: Random, num_groups: int) -> list[Event]:
    """The groups in any order between two clears, each group's events in their own."""
    shuffled: list[Event] = []
    piece: list[Event] = []
    for event in (*events, None):
        if event is not None and not isinstance(event, AllBlocksCleared):
            piece.append(event)
            continue
        rank = random.sample(range(num_groups), num_groups)
        shuffled += sorted(piece, key=lambda e: rank[getattr(e, "group_idx", 0)])
        shuffled += [] if event is None else [event]
        piece = []
    return shuffled


def is_far_enough(events: Sequence[Event]) -> bool:
    """Whether some store had four blocks of the smallest size that a store of several had."""
    stores = [e for e in events if isinstance(e, BlockStored) and (e.medium or "GPU") == "GPU"]
    spans = [(len(e.token_ids or ()), e.block_size) for e in stores]
    sizes = [size for span, size in spans if size and span >= 2 * size]
    return bool(sizes) and max(span for span, _ in spans) >= 4 * min(sizes)


def outgrew_placeholders(events: Sequence[Event]) -> bool:
    """Whether some group's blocks turned out larger after copies were told by hash alone."""
    sizes: dict[int | None, list[int]] = {}
    for event in events:
        if isinstance(event, BlockStored):
            sizes.setdefault(event.group_idx, []).append(event.block_size)
    return any(
        0 in told[:at] and 0 < max(told[:at]) < told[at]
        for told in sizes.values()
        for at in range(1, len(told))
    )


def row(index: FleetIndex, prompt: Prefix) -> PodScore:
    request = Request(model="m", token_ids=prompt.tokens, lora=prompt.lora, cache_salt=prompt.salt)
    (found,) = index.score(request).rows
    index.check_integrity()
    assert found.state is PodState.EXACT
    return found


@given(
    seed=st.integers(0, 2**32),
    topology=told_by_events(),
    habits=HABITS,
    algo=st.sampled_from((None, HashAlgo.SHA256, HashAlgo.XXHASH_CBOR)),
    steps=st.sampled_from((2, 10, 20)),
)
def test_answers_do_not_hang_on_which_group_speaks_first(
    seed: int, topology: Topology, habits: Habits, algo: HashAlgo | None, steps: int
) -> None:
    random = Random(seed)
    options = replace(OPTIONS, keys="auto" if algo else "join")
    indices = [FleetIndex(options) for _ in range(3)]
    hashes = Hashes(traffic.unit_of(topology), algo, SEED)
    for index, groups in zip(indices, ((), (), topology.groups), strict=True):
        of_index = replace(topology, groups=groups)
        index.register(
            POD, model="m", topology=of_index, engine=hashes.profile, loras=traffic.LORAS
        )
    engine = Engine(
        pod=POD, dp_rank=0, topology=topology, hashes=hashes, habits=habits, random=random
    )
    prompts = traffic.prompts(random, hashes.block_size, 3)
    told: list[Event] = []
    for _ in range(steps):
        for _ in range(random.choice((1, 2, 5))):
            engine.act(prompts)
        if random.random() < 0.1:
            engine.clear()
            engine.act(prompts)
        num_groups = len(topology.groups)
        orders = (engine.pending, in_other_order(engine.pending, random, num_groups))
        for index, events in zip(indices, (*orders, engine.pending), strict=True):
            index.apply(POD, encode_batch(events))
        told += engine.pending
        engine.pending = []
        prompt = traffic.request(random, prompts)
        if is_far_enough(told):
            is_doubted = outgrew_placeholders(told)
            check(indices, prompt, is_hash_known=algo is not None, is_doubted=is_doubted)
        else:
            check_before(indices, prompt)


def check_before(indices: Sequence[FleetIndex], prompt: Prefix) -> None:
    """A chain of short stores reaches far too, as soon as the place of its parent is known."""
    first, other, _ = (row(index, prompt) for index in indices)
    for mine, beside in ((first, other), (other, first)):
        assert mine.lower in (0, beside.lower)
        assert mine.upper == beside.upper


def check(
    indices: Sequence[FleetIndex], prompt: Prefix, *, is_hash_known: bool, is_doubted: bool
) -> None:
    first, other, configured = indices
    rows = [row(index, prompt) for index in indices]
    assert rows[0].tiers == rows[1].tiers, prompt
    sizes = [[(g.kind, g.block_size) for g in index.pods()[0].groups] for index in indices]
    assert sizes[0] == sizes[1]
    (standing,) = {index.pods()[0].hash_function for index in (first, other)}
    if sizes[0] == sizes[2] and (standing == "confirmed" or not is_hash_known):
        assert rows[0].tiers.keys() == rows[2].tiers.keys()
        for tiers, bounds in rows[0].tiers.items():
            exact = rows[2].tiers[tiers]
            if is_doubted and tiers != "gpu":
                assert bounds.lower <= exact.lower <= exact.upper <= bounds.upper, prompt
            else:
                assert bounds == exact, prompt
    assert configured.pods()[0].refused == first.pods()[0].refused


def may_hit_inside(topology: Topology) -> bool:
    """Whether an engine can have hits inside blocks: it has states, and no windows."""
    kinds = {group.kind for group in topology.groups}
    return SpecKind.MAMBA in kinds and SpecKind.SLIDING_WINDOW not in kinds


@given(
    seed=st.integers(0, 2**32),
    topology=told_by_events().filter(may_hit_inside),
    habits=HABITS,
    algo=st.sampled_from((None, HashAlgo.SHA256)),
    is_learned=st.booleans(),
)
def test_where_nobody_says_whether_hits_end_inside_blocks_the_bounds_hold_both(
    seed: int, topology: Topology, habits: Habits, algo: HashAlgo | None, *, is_learned: bool
) -> None:
    random = Random(seed)
    hashes = Hashes(traffic.unit_of(topology), algo, SEED)
    options = replace(OPTIONS, keys="auto" if algo else "join")
    untold, off, on = (FleetIndex(options) for _ in range(3))
    groups = () if is_learned else topology.groups
    for index, partial_hits in ((untold, None), (off, False), (on, True)):
        told = replace(topology, groups=groups, partial_hits=partial_hits)
        index.register(POD, model="m", topology=told, engine=hashes.profile, loras=traffic.LORAS)
    engine = Engine(
        pod=POD, dp_rank=0, topology=topology, hashes=hashes, habits=habits, random=random
    )
    prompts = traffic.prompts(random, hashes.block_size, 3)
    for _ in range(10):
        engine.act(prompts)
        for index in (untold, off, on):
            index.apply(POD, encode_batch(engine.pending))
        engine.pending = []
        prompt = traffic.request(random, prompts)
        wide, *narrow = (row(index, prompt) for index in (untold, off, on))
        for tiers, bounds in wide.tiers.items():
            assert all(bounds.lower <= each.tiers[tiers].lower for each in narrow), (wide, narrow)
            assert all(each.tiers[tiers].upper <= bounds.upper for each in narrow), (wide, narrow)
