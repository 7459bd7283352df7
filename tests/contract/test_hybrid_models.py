"""What indexers that only follow full attention get wrong, each with the engine's own answer.

A case is what an engine publishes and what it could then reuse of a prompt of 64 blocks.
"""

from typing import Any, NamedTuple

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError
from kvbraid.events import Event, WireForm
from kvbraid.fleet.request import Request
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    MODEL,
    OTHER,
    POD,
    TEXT,
    WINDOW,
    Bound,
    Group,
    Text,
    an_index,
    answer,
    exactly,
    tell,
)

TAIL = range(56, 64)
STATE = Group(idx=1, kind="mamba")
CHUNKED = Group(idx=1, kind="chunked_local_attention")
CHUNKED_512 = Topology(
    groups=(
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=512),
    )
)
FIRST_WINDOW = Group(idx=0, kind="sliding_window", window=128)
LAST_FULL = Group(idx=1)
ALONE = Group(idx=0, kind="mamba")
LARGE = Group(block=32)
LONG = Text(num_tokens=2048)
MLA = Group(idx=1, kind="mla_attention", block=64)


class Case(NamedTuple):
    """What is published, batch by batch, and what the engine would reuse."""

    batches: list[list[Event]]
    reused: int
    topology: Topology | None = None
    text: Text = TEXT
    num_tokens: int | None = None  # Of the prompt asked for; None: one more than is cached.


CASES = {
    "a_window_lost_one_of_its_blocks": Case(
        [[TEXT.stored(), TEXT.stored(WINDOW, keep=TAIL)], TEXT.removed(WINDOW, [60])], 0
    ),
    "a_window_is_complete_only_halfway": Case(
        [[TEXT.stored(), TEXT.stored(WINDOW, keep=range(24, 32))]], 512
    ),
    "a_window_group_stored_whole_then_freed_to_its_tail": Case(
        [[TEXT.stored(), TEXT.stored(WINDOW)], TEXT.removed(WINDOW, range(56))], 1024
    ),
    "the_window_group_comes_first": Case(
        [
            [TEXT.stored(FIRST_WINDOW, keep=TAIL), TEXT.stored(LAST_FULL)],
            TEXT.removed(FIRST_WINDOW, TAIL),
        ],
        0,
    ),
    "the_window_group_comes_first_and_holds": Case(
        [[TEXT.stored(FIRST_WINDOW, keep=TAIL), TEXT.stored(LAST_FULL)]], 1024
    ),
    "windows_only": Case([[TEXT.stored(FIRST_WINDOW)]], 1024),
    "windows_only_freed_to_the_tail": Case(
        [[TEXT.stored(FIRST_WINDOW)], TEXT.removed(FIRST_WINDOW, range(56))], 1024
    ),
    "states_only": Case([[TEXT.stored(ALONE)]], 1024),
    "a_state_at_the_end_was_evicted": Case(
        [[TEXT.stored(), TEXT.stored(STATE, keep=[31, 63])], TEXT.removed(STATE, [63])], 512
    ),
    "all_states_were_evicted": Case(
        [[TEXT.stored(), TEXT.stored(STATE, keep=[31, 63])], TEXT.removed(STATE, [31, 63])], 0
    ),
    "a_shorter_prompt_ends_between_states": Case(
        [[TEXT.stored(), TEXT.stored(STATE, keep=[31, 63])]], 512, num_tokens=50 * 16 + 1
    ),
    "a_hole_in_the_last_chunk": Case(
        [[TEXT.stored(), TEXT.stored(CHUNKED)], TEXT.removed(CHUNKED, [40])],
        640,
        topology=CHUNKED_512,
        num_tokens=1024,  # The end of the cached text is a chunk boundary and needs nothing.
    ),
    "a_hole_before_a_chunk_boundary_is_not_needed_at_it": Case(
        [[TEXT.stored(), TEXT.stored(CHUNKED)], TEXT.removed(CHUNKED, [40])],
        1024,
        topology=CHUNKED_512,
    ),
    "the_second_full_group_holds_half": Case(
        [[TEXT.stored(), TEXT.stored(LAST_FULL, range(32))]], 512
    ),
    "the_tail_came_back_in_one_of_two_full_groups": Case(
        [
            [TEXT.stored(), TEXT.stored(LAST_FULL)],
            [*TEXT.removed(FULL, range(32, 64)), *TEXT.removed(LAST_FULL, range(32, 64))],
            [TEXT.stored(FULL, range(32, 64))],
        ],
        512,
    ),
    "larger_blocks_than_usual": Case([[LONG.stored(LARGE)]], 2048, text=LONG),
    "unequal_blocks_meet_at_the_larger": Case(
        [[TEXT.stored(), TEXT.stored(MLA)], TEXT.removed(MLA, [15])], 960
    ),
    "the_head_came_back_and_the_tail_was_never_gone": Case(
        [[TEXT.stored()], TEXT.removed(FULL, [0]), [TEXT.stored(FULL, range(1))]], 1024
    ),
    "the_head_is_gone": Case([[TEXT.stored()], TEXT.removed(FULL, [0])], 0),
    "a_block_in_the_middle_came_back": Case(
        [[TEXT.stored()], TEXT.removed(FULL, [32]), [TEXT.stored(FULL, range(32, 33))]], 1024
    ),
    "one_of_two_copies_was_evicted": Case(
        [[TEXT.stored()], [TEXT.stored()], TEXT.removed(FULL, range(32, 64))], 1024
    ),
    "both_copies_were_evicted": Case(
        [[TEXT.stored()], [TEXT.stored()], TEXT.removed(FULL, [*range(32, 64)] * 2)], 512
    ),
    "full_attention_alone": Case([[TEXT.stored()], TEXT.removed(FULL, [63])], 1008),
    "groups_arrive_in_the_other_order": Case(
        [[TEXT.stored(WINDOW, keep=TAIL)], [TEXT.stored()]], 1024
    ),
}


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_what_the_engine_would_reuse(name: str, form: WireForm) -> None:
    case = CASES[name]
    index = an_index(case.topology)
    for batch in case.batches:
        tell(index, *batch, form=form)
    prompt = case.text.prompt[: case.num_tokens]
    assert answer(index, prompt) == exactly(case.reused)
    assert [(pod.state, pod.refused) for pod in index.pods()] == [(PodState.EXACT, {})]


def test_two_full_groups_are_told_by_the_limiting_one() -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(LAST_FULL, range(32)))
    (row,) = index.score(Request(model=MODEL, token_ids=TEXT.prompt)).rows
    assert row.limiting is not None
    assert (row.limiting.group, row.limiting.boundary) == (1, 528)


def test_each_pod_is_read_by_its_own_hashes() -> None:
    other = Text(engine="another seed")
    index = an_index(pods=[POD, OTHER])
    tell(index, TEXT.stored(FULL, range(32)))
    tell(index, other.stored(FULL, range(32)), pod=OTHER)
    tell(index, other.stored(FULL, range(32, 64)), pod=OTHER)
    assert answer(index) == exactly(512)
    assert answer(index, pod=OTHER) == exactly(1024)
    tell(index, *other.removed(FULL, [16]), pod=OTHER)
    assert answer(index) == exactly(512)
    assert answer(index, pod=OTHER) == exactly(256)


def test_eviction_at_one_of_two_pods_with_equal_hashes_leaves_the_other() -> None:
    index = an_index(pods=[POD, OTHER])
    for pod in (POD, OTHER):
        tell(index, TEXT.stored(), pod=pod)
    tell(index, *TEXT.removed(FULL, range(10, 64)), pod=OTHER)
    assert answer(index) == exactly(1024)
    assert answer(index, pod=OTHER) == exactly(160)


# --- where the truth is not on the wire: a bound that holds it -------------------------------

OLD_WINDOW = Group(idx=0, kind=None)
OLD_FULL = Group(idx=1, kind=None)
OLDEST = Group(idx=None, kind=None)


def reason_of(index: Any, tokens: Any = TEXT.prompt) -> str:  # noqa: ANN401 - short in tests
    (row,) = index.explain(Request(model=MODEL, token_ids=tokens)).rows
    return str(row.reason)


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize(
    ("batches", "reused", "bound"),
    [
        pytest.param(
            [[TEXT.stored(OLD_WINDOW, keep=TAIL), TEXT.stored(OLD_FULL)]],
            1024,
            (0, 1024),
            id="groups without kinds",
        ),
        pytest.param(
            [
                [TEXT.stored(OLDEST), TEXT.stored(OLDEST)],
                TEXT.removed(OLDEST, range(56)),
            ],
            1024,
            (0, 1024),
            id="no group index: a window among full attention frees its head",
        ),
    ],
)
def test_what_older_engines_do_not_say_widens_the_answer(
    batches: list[list[Event]], reused: int, bound: Bound, form: WireForm
) -> None:
    index = an_index()
    for batch in batches:
        tell(index, *batch, form=form)
    assert answer(index) == bound
    assert bound[0] <= reused <= bound[1]
    assert index.pods()[0].state is PodState.EXACT
    assert reason_of(index)


@pytest.mark.parametrize("kind", ["unknown", "hyper_attention"])
def test_a_group_of_unknown_kind_that_holds_everything_is_no_obstacle(kind: str) -> None:
    index = an_index()
    tell(index, TEXT.stored(Group(kind=kind)))
    assert answer(index) == exactly(1024)


def test_a_group_of_unknown_kind_with_a_hole_is_a_bound() -> None:
    index = an_index()
    tell(index, TEXT.stored(Group(kind="hyper_attention")))
    tell(index, *TEXT.removed(FULL, [10]))
    assert answer(index) == (160, 1024)
    assert index.pods()[0].refused == {"unknown_kind": 1}


@pytest.mark.parametrize("block_size", [16, 64])
def test_blocks_of_another_size_than_configured_degrade_the_pod(block_size: int) -> None:
    configured = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size),))
    index = an_index(configured)
    tell(index, LONG.stored(LARGE))
    lower, upper = answer(index, LONG.prompt)
    assert lower <= 2048 <= upper
    (pod,) = index.pods()
    assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_block_size")


def test_chunks_of_unknown_size_are_a_bound() -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(CHUNKED))
    tell(index, *TEXT.removed(CHUNKED, [40]))
    assert answer(index, TEXT.tokens) == (640, 1008)


UNSENT_512 = EngineProfile(
    unsent_tokens=(
        (SpecKind.SLIDING_WINDOW, 512),
        (SpecKind.CHUNKED_LOCAL_ATTENTION, 512),
    ),
)


@pytest.mark.parametrize(
    ("group", "hole", "reused"),
    [
        (CHUNKED, 40, 640),
        (CHUNKED, 20, 1008),
        (Group(idx=1, kind="sliding_window"), 40, 640),
        (Group(idx=1, kind="sliding_window"), 20, 1008),
    ],
)
def test_of_learned_groups_the_operator_may_say_what_no_event_carries(
    group: Group, hole: int, reused: int
) -> None:
    index = an_index(engine=UNSENT_512)
    tell(index, TEXT.stored(), TEXT.stored(group))
    tell(index, *TEXT.removed(group, [hole]))
    assert answer(index, TEXT.tokens) == exactly(reused)
    known = index.pods()[0].groups[1]
    assert 512 in (known.window, known.chunk)


def test_a_window_that_events_carry_is_the_groups_own() -> None:
    index = an_index(engine=UNSENT_512)
    tell(index, TEXT.stored(), TEXT.stored(WINDOW, keep=TAIL))
    assert answer(index) == exactly(1024)
    assert index.pods()[0].groups[1].window == 128


def test_a_window_of_no_tokens_is_refused() -> None:
    nothing = EngineProfile(unsent_tokens=((SpecKind.SLIDING_WINDOW, 0),))
    with pytest.raises(InvalidValueError, match="sliding_window: 0; give at least 1"):
        an_index(engine=nothing)
