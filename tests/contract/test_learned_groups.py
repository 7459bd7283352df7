"""Groups without configuration: what the index learns does not depend on which group comes first.

The events are those of an engine with hash blocks of 32 tokens and groups with larger blocks, made
with its real hash function.
"""

from dataclasses import replace
from itertools import permutations

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.events import AllBlocksCleared, BlockStored
from kvbraid.fleet.index import FleetIndex, IndexOptions, Presence
from kvbraid.fleet.request import Request
from kvbraid.hashing import EngineHash, HashAlgo, block_keys
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import MODEL, Group, Text, an_index, answer, exactly, tell

UNIT = 32
ALGO = HashAlgo.SHA256
CONFIGURED = EngineProfile(hash_algo=ALGO, hash_seed="0")
ASSUMED = EngineProfile()
PROMPT = Text(num_tokens=256)
LARGE = Group(idx=0, block=64)
SMALL = Group(idx=1, kind="sliding_window", block=32, window=64)
STATE = Group(idx=2, kind="mamba", block=128)


def stored(
    group: Group, keep: tuple[int, ...] | None = None, *, seed: str | None = "0", start: int = 0
) -> BlockStored:
    """A store of all blocks from block `start` on, or of some of them, by their real hashes."""
    size = group.block
    chain = block_keys(PROMPT.tokens, EngineHash(ALGO, seed=seed, block_size=UNIT))
    blocks = range(start, PROMPT.num_tokens // size)
    event = PROMPT.stored(group, blocks, keep=keep)
    kept = blocks if keep is None else keep
    return replace(
        event,
        block_hashes=tuple(chain[(j + 1) * size // UNIT - 1] for j in kept),
        parent_block_hash=chain[start * size // UNIT - 1] if start else None,
    )


def standing(index: FleetIndex) -> str:
    (pod,) = index.pods()
    assert pod.state is PodState.EXACT
    return pod.hash_function


EVENTS = (stored(LARGE), stored(SMALL, (6, 7)), stored(STATE, (1,)))


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("is_one_batch", [True, False], ids=["one-batch", "batch-by-batch"])
def test_whichever_group_is_published_first_the_hash_function_is_confirmed_and_places_all(
    order: tuple[int, ...], *, is_one_batch: bool
) -> None:
    index = an_index(engine=CONFIGURED)
    events = [EVENTS[i] for i in order]
    for batch in [events] if is_one_batch else [[event] for event in events]:
        tell(index, *batch)
    assert answer(index, PROMPT.prompt) == exactly(256)
    assert standing(index) == "confirmed"


def test_a_default_hash_function_is_confirmed_by_the_first_store_of_larger_blocks() -> None:
    index = an_index(engine=ASSUMED)
    tell(index, stored(LARGE, seed=None))
    assert standing(index) == "confirmed"


@pytest.mark.parametrize("engine", [CONFIGURED, ASSUMED], ids=["configured", "assumed"])
def test_where_no_group_is_dense_a_hash_along_a_sparse_store_confirms_the_function(
    engine: EngineProfile,
) -> None:
    index = an_index(engine=engine)
    seed = engine.hash_seed
    tell(index, stored(Group(idx=0, kind="sliding_window", block=64, window=64), (2,), seed=seed))
    assert standing(index) == "confirmed"
    assert answer(index, PROMPT.prompt) == exactly(192)


def test_a_function_excludes_nothing_before_its_hash_block_is_known() -> None:
    """A state below an unknown parent: in hash blocks of 64 the request's chain misses it."""
    index = an_index(engine=CONFIGURED)
    tell(index, stored(replace(STATE, idx=0, block=64), start=3))
    assert standing(index) == "configured"
    assert answer(index, PROMPT.prompt) == (0, 256)
    tell(index, stored(replace(STATE, idx=0, block=64)))
    assert standing(index) == "confirmed"
    assert answer(index, PROMPT.prompt) == exactly(256)


@pytest.mark.parametrize("group", [LARGE, SMALL], ids=["large-first", "small-first"])
def test_a_function_is_refuted_when_no_hash_block_at_all_gives_the_hash(group: Group) -> None:
    index = an_index(engine=CONFIGURED)
    tell(index, stored(group, seed="another"))
    (pod,) = index.pods()
    assert (pod.hash_function, pod.reason) == ("refuted", "contradicts_hash_function")


def test_sparse_stores_that_show_no_hash_of_the_function_refute_nothing() -> None:
    """Their salt may be hidden with the first block."""
    index = an_index(engine=CONFIGURED)
    tell(index, stored(SMALL, (6, 7), seed="another"))
    assert standing(index) == "configured"


def test_entries_within_a_block_are_seen_at_their_own_boundaries() -> None:
    """Partial hits: a state of 64 tokens saved at 32 and 96 too; the hash is nobody's to guess."""
    state = Group(idx=0, kind="mamba", block=64)
    index = an_index(Topology(groups=(), partial_hits=True))
    tell(index, PROMPT.stored(state, range(2)))
    tell(index, PROMPT.stored(replace(state, block=32), range(3)))
    assert answer(index, PROMPT.tokens[:97]) == exactly(96)
    (pod,) = index.pods()
    assert [group.block_size for group in pod.groups] == [64]


def test_what_is_in_doubt_stays_so_when_its_blocks_turn_out_to_be_parts_of_larger_ones() -> None:
    state = Group(idx=0, kind="mamba", block=64)
    parts = PROMPT.stored(replace(state, block=32), range(3), medium="CPU")
    index = an_index(Topology(groups=(), partial_hits=True))
    tell(index, parts, AllBlocksCleared())
    tell(index, Text(seed=1).stored(state))
    (row,) = index.score(Request(model=MODEL, token_ids=PROMPT.prompt)).rows
    with_cpu = row.tiers["gpu+cpu"]
    assert (with_cpu.lower, with_cpu.upper) == (0, 96)


def test_copies_told_by_hash_alone_are_in_doubt_when_blocks_turn_out_larger() -> None:
    """They may be of whole blocks, though what the group was told to hold was parts of blocks."""
    index = an_index()
    tell(index, PROMPT.stored(replace(LARGE, block=32), range(1)))
    tell(index, PROMPT.stored(LARGE, range(3), token_ids=(), block_size=0, medium="CPU"))
    tell(index, PROMPT.stored(LARGE), *PROMPT.removed(LARGE, range(4)))
    assert answer(index, PROMPT.prompt) == exactly(0)
    assert answer(index, PROMPT.prompt, tiers=["gpu", "cpu"]) == (0, 192)
    tell(index, *PROMPT.removed(LARGE, range(1), medium="CPU"))
    assert answer(index, PROMPT.prompt, tiers=["gpu", "cpu"]) == exactly(0)
    (pod,) = index.pods()
    assert pod.refused == {}


@pytest.mark.parametrize("presence", ["count", "set"])
def test_a_store_settles_a_doubt_about_blocks_that_turned_out_larger_unless_copies_are_counted(
    presence: Presence,
) -> None:
    index = an_index(options=IndexOptions(presence=presence))
    tell(index, PROMPT.stored(replace(LARGE, block=32), range(1)))
    tell(index, PROMPT.stored(LARGE, range(3), token_ids=(), block_size=0, medium="CPU"))
    tell(index, PROMPT.stored(LARGE), *PROMPT.removed(LARGE, range(4)))
    assert answer(index, PROMPT.prompt, tiers=["gpu", "cpu"]) == (0, 192)
    tell(index, PROMPT.stored(LARGE, range(3), medium="CPU"))
    assert answer(index, PROMPT.prompt, tiers=["gpu", "cpu"]) == exactly(192)
    tell(index, *PROMPT.removed(LARGE, range(3), medium="CPU"))
    left = (0, 192) if presence == "count" else exactly(0)
    assert answer(index, PROMPT.prompt, tiers=["gpu", "cpu"]) == left


def test_a_whole_block_without_a_place_may_not_end_inside_a_block() -> None:
    """The prompt repeats one token, so the block may end wherever a second one may."""
    state = GroupSpec(kind=SpecKind.MAMBA, block_size=64)
    index = an_index(Topology(groups=(state,), hash_block_size=32, partial_hits=True))
    block = replace(STATE, idx=0, block=64)
    tell(index, PROMPT.stored(block, range(2, 3), token_ids=(5,) * 64))
    assert answer(index, (5,) * 161) == (0, 128)
