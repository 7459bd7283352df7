"""The `weighted_blocks` strategy on the fixtures of the gateways' own scorer, to the digit."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.events.model import BlockRemoved, BlockStored, Event
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.hashing import EngineHash, HashAlgo, block_keys
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference.weighted_blocks import Group, GroupIndex
from tests.unit.fleet.weighted_feed import (
    POD,
    ask,
    holding,
    new_index,
    remove,
    score_after,
    store,
    tokens_of,
)

PROMPT = tokens_of(48)
FULL = Group("full_attention")
UNDECLARED = Group(None)


def window(tokens: int) -> Group:
    return Group("sliding_window", tokens)


FULL_AND_WINDOW: dict[GroupIndex, Group] = {0: FULL, 1: window(32)}
TWO_WINDOWS: dict[GroupIndex, Group] = {0: FULL, 1: window(32), 2: window(32)}
WINDOW_ONLY: dict[GroupIndex, Group] = {0: window(32)}


@dataclass(frozen=True)
class Fixture:
    """`blocks`: who holds each of three blocks: groups, c = on CPU, x = without a group."""

    name: str
    blocks: str
    score: float
    groups: dict[GroupIndex, Group] = field(default_factory=lambda: FULL_AND_WINDOW)

    def events(self) -> list[Event]:
        held: dict[tuple[GroupIndex, Tier], set[int]] = {
            (group, Tier.GPU): set() for group in self.groups
        }
        for block, entries in enumerate(self.blocks.split("|")):
            for entry in entries.strip("-").split():
                tier = Tier.CPU if entry.startswith("c") else Tier.GPU
                name = entry.removeprefix("c")
                group = None if name == "x" else int(name)
                held.setdefault((group, tier), set()).add(block)
        return [
            event
            for (group, tier), blocks in held.items()
            for event in holding(PROMPT, blocks, group=group, known=self.groups[group], tier=tier)
        ]


FIXTURES = [
    Fixture("all present", "0 1|0 1|0 1", 3),
    Fixture("window gone", "0|0|0", 0),
    Fixture("trailing window gone", "0 1|0 1|0", 2),
    Fixture("early window gone", "0|0 1|0 1", 3),
    Fixture("anchored run only", "0 1|0|0", 1),
    Fixture("window longer than prefix", "0 1|0 1|0 1", 3, {0: FULL, 1: window(64)}),
    Fixture("no main at block 0", "1|0 1|0 1", 0),
    Fixture("main cold, window warm", "1|1|1", 0),
    Fixture("main chain breaks", "0 1|0 1|1", 2),
    Fixture("tiers and truncation", "0 1|c0 1|0", 1.5),
    Fixture("group 0 undeclared", "0 1|0 1|0", 2, {0: UNDECLARED, 1: window(32)}),
    Fixture("ungrouped", "x|x|x", 3, {None: UNDECLARED}),
    Fixture("nothing declared", "0|0|1", 2, {0: UNDECLARED, 1: UNDECLARED}),
    Fixture("equal windows, disjoint", "0 2|0 1 2|0 1", 0, TWO_WINDOWS),
    Fixture("equal windows, joint tail", "0|0 1 2|0 1 2", 3, TWO_WINDOWS),
    Fixture("unequal windows", "0 2|0 1|0 1", 0, {0: FULL, 1: window(32), 2: window(17)}),
    Fixture("windows only, null prefix", "-|0|0", 3, WINDOW_ONLY),
    Fixture("windows only, on CPU", "-|c0|c0", 2, WINDOW_ONLY),
    Fixture("windows only, anchored", "0|-|-", 1, WINDOW_ONLY),
    Fixture("windows only, nothing", "-|-|-", 0, WINDOW_ONLY),
]


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_the_gateways_own_fixtures_score_the_same(fixture: Fixture) -> None:
    assert score_after(fixture.events(), PROMPT) == fixture.score


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_the_order_in_which_groups_speak_does_not_matter(fixture: Fixture) -> None:
    events = fixture.events()
    stores = [event for event in events if isinstance(event, BlockStored)]
    removals = [event for event in events if isinstance(event, BlockRemoved)]
    assert score_after([*reversed(stores), *reversed(removals)], PROMPT) == fixture.score


def test_an_engine_block_of_64_does_not_change_how_windows_are_counted() -> None:
    other = tokens_of(64, start=1000)
    events = [
        store(other, 0, 64, block_size=64, group=1, known=window(32)),
        *holding(PROMPT, {0, 1, 2}),
        *holding(PROMPT, {2}, group=1, known=window(32)),
    ]
    assert score_after(events, PROMPT) == 0


def masked(group: int, known: Group, *listed: int) -> BlockStored:
    """All 48 tokens, of which only blocks with these ends are kept."""
    return store(PROMPT, 0, 48, group=group, known=known, listed=listed)


DENSE = store(PROMPT, 0, 48)
FIRST_BLOCK = store(PROMPT, 0, 16, group=1, known=window(32))
TAILED = store(tokens_of(50), 0, 50, group=1, known=window(32), listed=(16, 32, 48))
MASKED: list[tuple[str, list[Event], float, float]] = [
    ("window tail", [DENSE, masked(1, window(32), 32, 48)], 0, 3),
    ("window tail first", [masked(1, window(32), 32, 48), DENSE], 0, 3),
    ("window of one block", [DENSE, masked(1, window(17), 48)], 0, 3),
    ("window with a hole", [DENSE, masked(1, window(32), 16, 48)], 0, 1),
    ("tail after a dense start", [DENSE, FIRST_BLOCK, masked(1, window(32), 32, 48)], 1, 3),
    ("tokens beyond the last block", [DENSE, TAILED], 0, 3),
]
"""The gateways' scorer skips masked stores (fewer hashes than blocks). Here they are placed: these
are the fixtures whose value differs for that reason, as (name, events, theirs, ours)."""


@pytest.mark.parametrize(("name", "events", "theirs", "ours"), MASKED, ids=[m[0] for m in MASKED])
def test_masked_stores_are_placed_where_gateways_skip_them(
    name: str, events: list[Event], theirs: float, ours: float
) -> None:
    # A skipped store still teaches its kind and window; it then holds nothing along the prompt.
    elsewhere = tokens_of(16, start=900)
    skipped: list[Event] = [
        store(elsewhere, 0, 16, group=event.group_idx, known=kind_of(event))
        if len(event.token_ids) != len(event.block_hashes) * event.block_size
        else event
        for event in events
        if isinstance(event, BlockStored)
    ]
    assert score_after(skipped, PROMPT) == theirs, name
    assert score_after(events, PROMPT) == ours, name


def kind_of(event: BlockStored) -> Group:
    return Group(event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)


def test_a_removal_takes_back_what_a_masked_store_added() -> None:
    events: list[Event] = [DENSE, masked(1, window(32), 32, 48), remove(PROMPT, 48, group=1)]
    assert score_after(events, PROMPT) == 0


def test_a_masked_store_of_a_window_only_pod_is_placed_by_the_engines_hash_function() -> None:
    spec = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=32)
    index = FleetIndex()
    engine = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed="0")
    index.register(POD, model="m", topology=Topology(groups=(spec,)), engine=engine)
    keys = block_keys(PROMPT, EngineHash(seed="0"))
    tail = replace(masked(0, window(32), 32, 48), block_hashes=tuple(keys[1:]))
    index.apply(POD, encode_batch([tail]))
    assert ask(index, PROMPT).score == 3


# ---- canonical blocks that are not the engine's ------------------------------------------------


def test_canonical_blocks_are_judged_at_token_boundaries_whatever_the_stores_were_cut_like() -> (
    None
):
    prompt = tokens_of(208)
    events = [store(prompt, 0, 80), store(prompt, 80, 208)]
    assert score_after(events, prompt, canonical=64) == 3


def test_blocks_stored_one_by_one_while_decoding_make_up_canonical_blocks() -> None:
    prompt = tokens_of(192)
    decoded = [store(prompt, first, first + 16) for first in range(64, 128, 16)]
    events = [store(prompt, 0, 64), *decoded, store(prompt, 128, 192)]
    assert score_after(events, prompt, canonical=64) == 3
    assert score_after(events[:4], prompt, canonical=64) == 1


# ---- the catalogue ------------------------------------------------------------------------------


def test_a_removal_is_of_the_group_whatever_kind_and_window_the_store_gave_it() -> None:
    events: list[Event] = [
        store(PROMPT, 0, 48),
        store(PROMPT, 0, 48, group=1, known=window(32)),
    ]
    assert score_after(events, PROMPT) == 3
    assert score_after([*events, remove(PROMPT, 48, group=1)], PROMPT) == 2
    assert score_after([*events, remove(PROMPT, 48)], PROMPT) == 2


def test_a_copy_stored_before_its_kind_was_known_is_removed_all_the_same() -> None:
    declared = store(tokens_of(16, start=900), 0, 16, group=1, known=window(32))
    events: list[Event] = [
        store(PROMPT, 0, 48),
        store(PROMPT, 0, 48, group=1, known=UNDECLARED),
        declared,
    ]
    assert score_after(events, PROMPT) == 3
    assert score_after([*events, remove(PROMPT, 48, group=1)], PROMPT) == 2


def test_group_0_is_main_until_its_kind_is_known() -> None:
    undeclared: list[Event] = [store(PROMPT, 0, 48, known=UNDECLARED), remove(PROMPT, 16)]
    assert score_after(undeclared, PROMPT) == 0
    declared = store(tokens_of(16, start=900), 0, 16, known=window(32))
    assert score_after([*undeclared, declared], PROMPT) == 3  # Windows only, null prefix.


def test_groups_of_other_kinds_and_windows_of_one_token_restrict_nothing() -> None:
    other = [
        store(tokens_of(16, start=900), 0, 16, group=group, known=known)
        for group, known in enumerate(
            (Group("mamba"), Group("chunked_local_attention"), Group("new_kind"), window(1)), 1
        )
    ]
    assert score_after([*other, DENSE], PROMPT) == 3


def unknown(index: FleetIndex, *, pod: str = POD) -> bool:
    row = ask(index, PROMPT, pod=pod)
    if row.exactness == "unknown":
        assert row.score == 0
    return row.exactness == "unknown"


def test_an_empty_catalogue_has_no_score() -> None:
    assert unknown(new_index())


def test_a_removal_before_any_store_has_no_score_and_takes_nothing_from_a_later_store() -> None:
    index = new_index()
    index.apply(POD, encode_batch([remove(PROMPT, 16)]))
    assert unknown(index)
    index.apply(POD, encode_batch([DENSE]))
    assert ask(index, PROMPT).score == 3


@pytest.mark.parametrize(
    "groups",
    [
        {0: Group("mamba")},
        {5: UNDECLARED},
        {1: window(32)},
        {0: Group("new_kind"), 1: FULL._replace(kind="mamba")},
        {0: Group("sliding_window")},
        {0: window(1)},
    ],
)
def test_groups_that_do_not_tell_how_to_score_have_no_score(groups: dict[int, Group]) -> None:
    index = new_index()
    for group, known in groups.items():
        index.apply(POD, encode_batch([store(PROMPT, 0, 48, group=group, known=known)]))
    assert unknown(index)


def test_a_pod_that_nobody_registered_or_that_serves_another_model_has_no_score() -> None:
    index = new_index()
    index.register(PodId("other"), model="other")
    for pod in ("stranger", "other"):
        assert unknown(index, pod=pod)
        row = ask(index, PROMPT, pod=pod)
        assert (row.pod, row.state, row.lower) == (pod, PodState.STALE, 0)
        with pytest.raises(UnknownError, match=pod):
            index.score(Request(model="m", token_ids=PROMPT, pods=[pod]))


def test_a_pod_of_known_groups_that_holds_nothing_scores_0() -> None:
    index = new_index()
    index.register(
        POD,
        model="m",
        topology=Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),)),
    )
    row = ask(index, PROMPT)
    assert (row.score, row.exactness) == (0, "exact")


# ---- the answer ---------------------------------------------------------------------------------


def test_only_the_score_of_a_row_depends_on_the_strategy() -> None:
    index = new_index()
    long = tokens_of(64, start=1000)
    index.apply(POD, encode_batch([store(long, 0, 64)]))
    index.apply(POD, encode_batch([DENSE, *holding(PROMPT, {0, 1}, group=1, known=window(32))]))
    exact = Request(model="m", token_ids=PROMPT)
    weighted = replace(exact, strategy="weighted_blocks")
    (before,), (after,) = index.score(exact).rows, index.score(weighted).rows
    assert (before.score, after.score) == (32.0, 2.0)
    assert replace(before, score=after.score) == after


def test_tiers_that_are_not_asked_for_do_not_count() -> None:
    index = new_index()
    events = [*holding(PROMPT, {0}), *holding(PROMPT, {0, 1, 2}, tier=Tier.CPU)]
    index.apply(POD, encode_batch(events))
    request = Request(model="m", token_ids=PROMPT, strategy="weighted_blocks")
    for tiers, score in ((None, 2.0), (["gpu"], 1.0), (["cpu"], 1.5), (["storage"], 0.0)):
        (row,) = index.score(replace(request, tiers=tiers)).rows
        assert row.score == score


def test_the_json_answer_says_unknown_for_a_row_without_a_score() -> None:
    index = new_index()
    request = Request(model="m", token_ids=PROMPT, strategy="weighted_blocks")
    (row,) = json.loads(index.score(request).to_json())["pods"]
    assert (row["score"], row["exactness"]) == (0.0, "unknown")


def test_a_canonical_block_has_at_least_one_token() -> None:
    with pytest.raises(InvalidValueError, match="canonical_block_size is 0"):
        IndexOptions(canonical_block_size=0)


NO_NUMBER = "expected a number from 0 to 1000000"
WRONG_WEIGHTS: Any = {
    "inf": ({Tier.CPU: float("inf")}, f"tier_weights[Tier.CPU] is inf; {NO_NUMBER}"),
    "nan": ({Tier.CPU: float("nan")}, f"tier_weights[Tier.CPU] is nan; {NO_NUMBER}"),
    "negative": ({Tier.GPU: -0.5}, f"tier_weights[Tier.GPU] is -0.5; {NO_NUMBER}"),
    "too large": ({Tier.STORAGE: 1e300}, f"tier_weights[Tier.STORAGE] is 1e+300; {NO_NUMBER}"),
    "text": ({Tier.CPU: "1"}, f"tier_weights[Tier.CPU] is '1'; {NO_NUMBER}"),
    "no tier": (
        {"hbm": 1.0},
        "tier_weights: key is 'hbm'; expected one of Tier.GPU, Tier.CPU, Tier.STORAGE",
    ),
    "no mapping": (
        [1.0],
        "tier_weights is [1.0]; expected a mapping of Tier to a number, or None",
    ),
}


@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_weights_that_no_tier_can_have_are_refused(name: str) -> None:
    weights, told = WRONG_WEIGHTS[name]
    with pytest.raises(InvalidValueError) as refused:
        IndexOptions(tier_weights=weights)
    assert str(refused.value) == told
    with pytest.raises(InvalidValueError) as refused:
        Request(model="m", token_ids=PROMPT, tier_weights=weights)
    assert str(refused.value) == told
