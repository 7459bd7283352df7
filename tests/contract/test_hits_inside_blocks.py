"""Nobody said whether an engine has hits inside blocks: where that matters, answers are bounds."""

from dataclasses import replace

import pytest
from kvbraid.fleet.request import Request
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import FULL, MODEL, TEXT, Bound, Group, Text, an_index, answer, tell

COARSE = Group(idx=0, block=64)
STATE = Group(idx=1, kind="mamba", block=64)
STATE_PART = Group(idx=1, kind="mamba", block=32)
CONFIGURED = (
    GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=64),
    GroupSpec(kind=SpecKind.MAMBA, block_size=64),
)
INSIDE = (TEXT.stored(COARSE), TEXT.stored(STATE, keep=(1,)), TEXT.stored(STATE_PART, range(4, 5)))
"""States at 128 tokens, where a block ends, and at 160, inside a block."""


@pytest.mark.parametrize("groups", [(), CONFIGURED], ids=["learned", "configured"])
@pytest.mark.parametrize(
    ("partial_hits", "bound"),
    [(True, (160, 160)), (False, (128, 128)), (None, (128, 160))],
    ids=["on", "off", "left out"],
)
def test_a_state_inside_a_block_is_a_hit_or_not_as_the_engine_is_configured(
    partial_hits: bool | None,
    bound: Bound,
    groups: tuple[GroupSpec, ...],
) -> None:
    hash_block_size = 32 if partial_hits else None
    topology = Topology(groups=groups, hash_block_size=hash_block_size, partial_hits=partial_hits)
    index = an_index(topology)
    tell(index, *INSIDE)
    assert answer(index) == bound


def test_a_pod_of_which_nothing_was_said_names_the_setting() -> None:
    index = an_index()
    tell(index, *INSIDE)
    assert answer(index) == (128, 160)
    (row,) = index.explain(Request(model=MODEL, token_ids=TEXT.prompt)).rows
    assert "set partial_hits" in row.reason
    tell(index, *TEXT.removed(STATE_PART, [4]))
    assert answer(index) == (128, 128)


@pytest.mark.parametrize("groups", [(), CONFIGURED[1:]], ids=["learned", "configured"])
@pytest.mark.parametrize(
    ("partial_hits", "bound"),
    [(True, (128, 160)), (False, (128, 128)), (None, (128, 160))],
    ids=["on", "off", "left out"],
)
def test_a_copy_told_by_hash_alone_may_be_of_a_state_inside_a_block(
    partial_hits: bool | None, bound: Bound, groups: tuple[GroupSpec, ...]
) -> None:
    """Nobody knows where on the prompt it stands, or whether it stands there at all."""
    index = an_index(Topology(groups=groups, hash_block_size=32, partial_hits=partial_hits))
    state = replace(STATE, idx=0)
    tell(index, TEXT.stored(state))
    asked, tiers = TEXT.tokens[:162], ["gpu", "cpu"]
    assert answer(index, asked, tiers=tiers) == (128, 128)
    elsewhere = Text(seed=1)
    untold = elsewhere.stored(state, range(1), token_ids=(), block_size=0, medium="CPU")
    tell(index, untold)
    assert answer(index, asked, tiers=tiers) == bound
    assert answer(index, asked) == (128, 128)
    tell(index, *elsewhere.removed(state, range(1), medium="CPU"))
    assert answer(index, asked, tiers=tiers) == (128, 128)


def test_parts_of_attention_alone_make_no_difference() -> None:
    index = an_index()
    tell(index, TEXT.stored(COARSE), TEXT.stored(STATE, keep=(1,)))
    tell(index, TEXT.stored(Group(idx=0, block=32), range(32, 33)))
    assert answer(index) == (128, 128)


def test_an_engine_with_windows_of_larger_blocks_has_no_such_hits() -> None:
    index = an_index()
    window = Group(idx=2, kind="sliding_window", block=64, window=64)
    tell(index, *INSIDE, TEXT.stored(window))
    assert answer(index) == (128, 128)
    index = an_index()
    tell(index, *INSIDE, TEXT.stored(Group(idx=2, kind="sliding_window", block=32, window=32)))
    assert answer(index) == (128, 160)


def test_a_pod_with_states_at_the_ends_of_their_blocks_alone_is_exact() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL), TEXT.stored(STATE, keep=(1,)))
    assert answer(index) == (128, 128)
