"""`FleetIndex.save` and `load` against the model: to load is to have replayed.

Random engines act, and every now and then another index takes over from what the one before saved.
Every answer must still be the model's, which knows nothing of that. Bytes that are not a whole
snapshot of the pod are refused by name, and change nothing.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import SnapshotError, UnknownError
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId
from kvbraid.spec import Topology

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
from tests.reference.fleet_traffic import Habits

POD = PodId("a")


@given(
    seed=SEEDS,
    fleet=FLEETS,
    habits=HABITS,
    algo=st.sampled_from((None, *HashAlgo)),
    steps=STEPS,
    filler_ranks=st.sampled_from((0, 0, 61, 70)),
    every=st.sampled_from((1, 3, 7)),
)
def test_an_index_that_loads_answers_as_one_that_has_seen_everything(
    seed: int,
    fleet: list[Topology],
    habits: Habits,
    algo: HashAlgo | None,
    steps: int,
    filler_ranks: int,
    every: int,
) -> None:
    options = IndexOptions(keys="auto" if algo else "join", secret=SECRET)
    fleet_world = world(seed, fleet, habits, algo, options, filler_ranks)
    for step, _ in enumerate(fleet_world.steps(steps)):
        if step % every == 0:
            fleet_world.save_and_load()
        for engine, prompt, row in fleet_world.ask():
            if algo is not None or engine.model.is_named:
                check_exact(row, engine, prompt)
            else:
                check_bounds(row, engine, prompt)


def index_of(secret: bytes = SECRET, *, model: str = "m") -> FleetIndex:
    index = FleetIndex(IndexOptions(secret=secret))
    index.register(POD, model=model)
    return index


WHOLE = index_of().save(POD, note="a note")
VERSION = slice(8, 12)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        (b"", "foreign"),
        (b"no snapshot" * 9, "foreign"),
        (WHOLE[:8] + (3).to_bytes(4, "little") + WHOLE[12:], "newer"),
        (WHOLE[:8] + (1).to_bytes(4, "little") + WHOLE[12:], "older"),
        (WHOLE[:8] + bytes(4) + WHOLE[12:], "older"),
        (WHOLE[:-1], "cut"),
        (WHOLE[:10], "cut"),
        (WHOLE + b"\0", "cut"),
        (index_of(bytes([1] * 32)).save(POD), "other_secret"),
        (index_of(model="n").save(POD), "other_pod"),
        (WHOLE[:50] + bytes([WHOLE[50] ^ 1]) + WHOLE[51:], "damaged"),
    ],
)
def test_what_is_no_snapshot_of_the_pod_is_refused_by_name_and_changes_nothing(
    saved: bytes, reason: str
) -> None:
    index = index_of()
    with pytest.raises(SnapshotError, match=rf"\"a\" is refused \({reason}\).*remove it") as it:
        index.load(POD, saved)
    assert it.value.reason == reason
    assert index.save(POD, note="a note") == WHOLE


def test_a_snapshot_of_another_pod_is_not_taken_for_this_one_s() -> None:
    index = index_of()
    index.register(PodId("b"), model="m")
    with pytest.raises(SnapshotError, match="other_pod"):
        index.load(PodId("b"), WHOLE)
    with pytest.raises(UnknownError):
        index.load(PodId("c"), WHOLE)
    with pytest.raises(UnknownError):
        index.save(PodId("c"))
