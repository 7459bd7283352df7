"""The fleet index (`_native.FleetCore`) against a model that knows what every hash stands for.

If the engines' hash function is known, every answer must equal the model's. If it is not, the
bounds must contain the model's answer, and equal it if dense stores have placed everything that is
held. Integrity is checked after every step.
"""

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.fleet.index import IndexOptions, Keys
from kvbraid.hashing import HashAlgo
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.differential.fleet_worlds import (
    FLEETS,
    HABITS,
    SECRET,
    SEEDS,
    STEPS,
    check_bounds,
    check_exact,
    world,
)
from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_traffic import Habits
from tests.reference.topologies import FULL

JOIN = IndexOptions(keys="join", secret=SECRET)


@st.composite
def sparse_topologies(draw: st.DrawFn) -> Topology:
    """One or two groups that engines store sparsely; often none tells where their blocks are."""
    unit = draw(st.sampled_from((1, 2)))
    kinds = (SpecKind.SLIDING_WINDOW, SpecKind.SLIDING_WINDOW, SpecKind.MAMBA, FULL.kind)
    chosen = []
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        kind = draw(st.sampled_from(kinds))
        size = unit * draw(st.sampled_from((1, 1, 2, 3)))
        window = draw(st.integers(2, 3 * size)) if kind.is_window else None
        chosen.append(GroupSpec(kind=kind, block_size=size, window=window))
    return Topology(
        groups=tuple(chosen),
        hash_block_size=unit,
        partial_hits=draw(st.sampled_from((False, False, True))),
    )


@given(
    seed=SEEDS,
    fleet=FLEETS,
    habits=HABITS,
    algo=st.sampled_from(HashAlgo),
    steps=STEPS,
    filler_ranks=st.sampled_from((0, 0, 61, 70)),
)
def test_with_the_hash_function_known_every_answer_is_the_model_s(
    seed: int,
    fleet: list[Topology],
    habits: Habits,
    algo: HashAlgo,
    steps: int,
    filler_ranks: int,
) -> None:
    fleet_world = world(seed, fleet, habits, algo, IndexOptions(secret=SECRET), filler_ranks)
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            check_exact(row, engine, prompt)


@given(seed=SEEDS, fleet=FLEETS, habits=HABITS, steps=STEPS)
def test_with_the_hash_function_unknown_bounds_hold_the_model_s_answer(
    seed: int, fleet: list[Topology], habits: Habits, steps: int
) -> None:
    fleet_world = world(seed, fleet, habits, None, JOIN)
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            if engine.model.is_named:
                check_exact(row, engine, prompt)
            else:
                check_bounds(row, engine, prompt)


@given(
    seed=SEEDS, topology=sparse_topologies(), orphan=st.sampled_from((0.0, 0.5, 0.9)), steps=STEPS
)
def test_bounds_hold_where_no_group_tells_positions(
    seed: int, topology: Topology, orphan: float, steps: int
) -> None:
    sparse = Habits(sparse=1.0, orphan=orphan, other_tier=0.05)
    fleet_world = world(seed, [topology], sparse, None, JOIN)
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            check_bounds(row, engine, prompt)


@given(seed=SEEDS, fleet=FLEETS, steps=STEPS, filler_ranks=st.sampled_from((0, 63)))
def test_what_is_published_densely_needs_no_hash_function(
    seed: int, fleet: list[Topology], steps: int, filler_ranks: int
) -> None:
    dense = Habits(sparse=0.0, orphan=0.0, partial=0.5, other_tier=0.2)
    fleet_world = world(seed, fleet, dense, None, JOIN, filler_ranks)
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            if engine.model.is_named:
                check_exact(row, engine, prompt)


@given(
    seed=SEEDS,
    fleet=FLEETS,
    habits=HABITS,
    steps=STEPS,
    algo=st.sampled_from((None, HashAlgo.SHA256)),
    memory=st.sampled_from((None, 1, 20_000)),
    limbo=st.sampled_from((0, 1_000, 64 << 20)),
)
def test_an_index_short_of_memory_forgets_and_says_so(
    seed: int,
    fleet: list[Topology],
    habits: Habits,
    steps: int,
    algo: HashAlgo | None,
    memory: int | None,
    limbo: int,
) -> None:
    keys: Keys = "join" if algo is None else "auto"
    limits = IndexOptions(
        keys=keys, memory_limit_bytes=memory, limbo_limit_bytes=limbo, secret=SECRET
    )
    fleet_world = world(seed, fleet, habits, algo, limits)
    fleet_world.forgets = True
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            check_bounds(row, engine, prompt)


@given(
    seed=SEEDS,
    fleet=FLEETS,
    steps=STEPS,
    other_tier=st.sampled_from((0.0, 0.3)),
    restart=st.sampled_from((0.0, 0.1)),
)
def test_two_hashes_of_one_prefix_leave_bounds_and_only_where_a_request_passes_it(
    seed: int, fleet: list[Topology], steps: int, other_tier: float, restart: float
) -> None:
    """Clears, removals of one of the two, and restarts come between."""
    twins = Habits(
        sparse=0.0, orphan=0.0, partial=0.5, other_tier=other_tier, restart=restart, twins=0.5
    )
    fleet_world = world(seed, fleet, twins, None, JOIN)
    for _ in fleet_world.steps(steps):
        for engine, prompt, row in fleet_world.ask():
            meaning = engine.hashes.meaning
            doubles = (meaning[h] for h in meaning if h & traffic.TWIN)
            if any(double.is_prefix_of(prompt) for double in doubles):
                check_bounds(row, engine, prompt)
            elif engine.model.is_named:
                check_exact(row, engine, prompt)
