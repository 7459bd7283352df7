"""Answers under fire: whatever a pod publishes and a client asks, an answer is right and quick.

Sizes stand for times: if a quadratic algorithm would need an hour for a test, the assertion is
that the test ends at all.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import BlockRemoved, BlockStored, Event, encode_batch
from kvbraid.fleet.answer import PodInfo, PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request, Strategy
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId, PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

POD = PodId("a")
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1)
LONG = 1 << 18


def index_of(*groups: GroupSpec, pods: Iterable[str] = (POD,)) -> FleetIndex:
    """An index of pods whose groups are configured, or learned where none are given."""
    index = FleetIndex()
    for pod in pods:
        topology = Topology(groups=groups) if groups else None
        index.register(PodId(pod), model="m", topology=topology)
    return index


def stored(hashes: Sequence[int], tokens: Sequence[int] | None, **fields: Any) -> BlockStored:  # noqa: ANN401 - fields of the event
    """One store of blocks of one token; a field more replaces its own."""
    event: dict[str, Any] = {
        "block_hashes": tuple(hashes),
        "parent_block_hash": None,
        "token_ids": None if tokens is None else tuple(tokens),
        "block_size": 1,
        "group_idx": 0,
        **fields,
    }
    return BlockStored(**event)


def tell(index: FleetIndex, *events: Event, pod: str = POD) -> None:
    index.apply(PodId(pod), encode_batch(events))


def request_of(tokens: Sequence[int], **fields: Any) -> Request:  # noqa: ANN401 - fields of the request
    return Request(model="m", token_ids=array("I", tokens), **fields)


def row_of(index: FleetIndex, tokens: Sequence[int], **fields: Any) -> PodScore:  # noqa: ANN401 - as above
    (row,) = index.score(request_of(tokens, **fields)).rows
    return row


def info(index: FleetIndex) -> PodInfo:
    (pod,) = index.pods()
    return pod


# --- explain -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        FULL,
        GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=1, window=LONG // 2),
        GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=1, chunk=LONG // 2),
    ],
    ids=lambda group: group.kind.value,
)
def test_every_boundary_of_a_long_prompt_is_explained(group: GroupSpec) -> None:
    index = index_of(group)
    tell(index, stored(range(LONG), range(LONG)))
    (row,) = index.explain(request_of(range(LONG + 1))).rows
    (strip,) = row.groups
    assert list(strip.held) == [True] * LONG + [False]
    assert strip.accepted == list(range(1, LONG + 1))


def test_an_explanation_asks_the_index_once() -> None:
    """Else a pod could be registered anew between the answer and its reason."""

    class Restless(FleetIndex):
        def pods(self) -> list[PodInfo]:
            self.remove(POD)
            return super().pods()

    index = Restless()
    index.register(POD, model="m")
    index.set_state(POD, PodState.DEGRADED, reason="a hole")
    (row,) = index.explain(request_of(range(4))).rows
    assert row.reason == "a hole"


def test_an_explanation_of_more_blocks_than_it_shows_is_refused() -> None:
    pods = [f"p{i}" for i in range(17)]
    index = index_of(FULL, pods=pods)
    tokens = range(1 << 18)
    with pytest.raises(InvalidValueError, match=r"4456448 blocks.* at most 4194304: name fewer"):
        index.explain(request_of(tokens))
    assert len(index.explain(request_of(tokens, pods=pods[:2])).rows) == 2


# --- a pod named twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["exact", "weighted_blocks"])
def test_a_pod_named_twice_has_equal_rows(strategy: Strategy) -> None:
    index = index_of(FULL, pods=["a", "b"])
    tell(index, stored(range(32), range(32)))
    tell(index, stored(range(16), range(16)), pod="b")
    names = ["a", "b", "a", "a", "b"]
    rows = index.score(request_of(range(40), pods=names, strategy=strategy)).rows
    assert [row.pod for row in rows] == names
    assert [(row.lower, row.upper, row.exactness) for row in rows] == [
        {"a": (32, 32, "exact"), "b": (16, 16, "exact")}[name] for name in names
    ]
    assert len({row.score for row in rows if row.pod == "a"}) == 1


def test_a_pod_named_twice_is_explained_twice() -> None:
    index = index_of(FULL)
    tell(index, stored(range(4), range(4)))
    first, second = index.explain(request_of(range(8), pods=["a", "a"])).rows
    assert first == second
    assert first.groups[0].accepted == [1, 2, 3, 4]


# --- sizes that nobody needs ---------------------------------------------------------------------

HUGE = 2**32 - 1
LARGEST = 1 << 20


def test_an_event_of_a_huge_block_teaches_nothing_and_is_counted() -> None:
    index = index_of()
    tell(index, stored([1], None, block_size=HUGE, kv_cache_spec_kind="full_attention"))
    row = row_of(index, range(8))
    assert (row.state, row.lower, row.upper) == (PodState.DEGRADED, 0, 7)
    assert info(index).refused == {"contradicts_size_limit": 1}
    assert not info(index).groups


def test_a_huge_block_cannot_be_configured() -> None:
    with pytest.raises(InvalidValueError, match=r"block_size 1048577 .* at most 1048576 tokens"):
        index_of(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=LARGEST + 1))


@pytest.mark.parametrize("strategy", ["exact", "weighted_blocks"])
def test_a_block_larger_than_the_request_costs_it_nothing(strategy: Strategy) -> None:
    """Pods of a thousand different large blocks: a table for each would be gigabytes."""
    index = FleetIndex()
    for i in range(1000):
        group = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=LARGEST - i)
        index.register(PodId(f"p{i:03}"), model="m", topology=Topology(groups=(group,)))
    rows = index.score(request_of(range(8), strategy=strategy)).rows
    assert {(row.lower, row.upper, row.exactness) for row in rows} == {(0, 0, "exact")}
    index.explain(request_of(range(8)))


# --- lookahead and media -------------------------------------------------------------------------


def test_a_long_learned_lookahead_costs_a_long_request_nothing_more() -> None:
    index = index_of(FULL)
    ahead = [list(range(1, LONG))]
    tell(index, stored([1], [0], kv_cache_spec_kind="full_attention", lookahead_token_ids=ahead))
    assert row_of(index, range(2 * LONG)).lower == 1
    assert row_of(index, [*range(LONG - 1), 5, 7]).lower == 0


def test_many_media_items_cost_a_long_request_nothing_more() -> None:
    index = index_of(FULL)
    media = [MediaItem(identifier=f"m{i}", offset=i, length=1) for i in range(LONG)]
    keys = [[["m0", 0], ["m1", 1]]]
    event = {"lookahead_token_ids": [[1]], "extra_keys": keys}
    tell(index, stored([1], [0], kv_cache_spec_kind="full_attention", **event))
    assert row_of(index, range(LONG), extra_keys=media).lower == 1
    assert row_of(index, range(LONG), extra_keys=media[1:]).lower == 0


# --- channels ------------------------------------------------------------------------------------


def owned(count: int, first: int = 0) -> list[Event]:
    """One copy of each of these hashes, each of its own owner, below a parent nobody knows."""
    hashes = range(first, first + count)
    return [stored([h], [7], parent_block_hash=10**12, ownership=f"o{h}") for h in hashes]


def test_owners_without_end_are_counted_and_leave_no_answer_exact() -> None:
    index = index_of(FULL)
    tell(index, *owned(70_000, first=1))
    tell(index, stored(range(100_000, 100_004), range(4)))
    index.check_integrity()
    assert info(index).refused["too_many_channels"] == 70_000 - 4096 + 1
    row = row_of(index, range(8))
    assert (row.lower, row.upper, row.exactness) == (0, 7, "bound")


def test_a_channel_that_exists_still_counts_when_no_other_can_be_made() -> None:
    index = index_of(FULL)
    tell(index, stored(range(100_000, 100_004), range(4)), *owned(5000, first=1))
    row = row_of(index, range(8))
    assert (row.lower, row.upper) == (4, 7)


def test_copies_of_a_block_by_many_owners_go_one_by_one() -> None:
    index = index_of(FULL)
    owners = [f"o{i}" for i in range(200)]
    tell(index, *(stored([1], [7], ownership=owner) for owner in owners + owners[50:]))
    for count, owner in enumerate(owners + owners[50:], start=1):
        assert row_of(index, [7, 8]).lower == 1
        tell(index, BlockRemoved(block_hashes=(1,), group_idx=0, ownership=owner))
        index.check_integrity()
        assert row_of(index, [7, 8]).lower == int(count < 350)
    assert info(index).refused == {}


# --- what is undecided ---------------------------------------------------------------------------


def test_a_floating_trie_of_one_token_leaves_a_long_request_a_bound() -> None:
    """Each member may stand at each boundary: 2000 times 65536 places."""
    index = index_of(FULL)
    members = 2000
    tell(index, stored(range(1, members + 1), [7] * members, parent_block_hash=10**12))
    row = row_of(index, [7] * 65_536)
    assert (row.lower, row.upper, row.state) == (0, 65_535, PodState.EXACT)
    assert info(index).refused == {"answer_cut_short": 1}
    assert row_of(index, [7] * 8).upper == 0, "none of them stands at the first boundary"
    assert row_of(index, [7] * 8, tiers=["cpu"]).exactness == "exact"


def test_many_floating_tries_of_one_token_leave_a_long_request_a_bound() -> None:
    index = index_of(FULL)
    tell(index, *(stored([i], [7], parent_block_hash=10**12 + i) for i in range(5000)))
    assert row_of(index, [7] * 65_536).upper == 65_535
    assert info(index).refused == {"answer_cut_short": 1}


def test_what_one_rank_has_undecided_spoils_no_other_answer() -> None:
    index = index_of(FULL, pods=["a", "b"])
    tell(index, *(stored([i], [7], parent_block_hash=10**12 + i) for i in range(5000)))
    tell(index, stored([1], [9], parent_block_hash=10**12), pod="b")
    tell(index, stored(range(100, 108), [7] * 8), pod="b")
    a, b = index.score(request_of([7] * 65_536)).rows
    assert (a.exactness, a.upper) == ("bound", 65_535)
    assert (b.exactness, b.upper) == ("exact", 8)


def test_hashes_that_may_stand_anywhere_count_once() -> None:
    """20 000 of them along 65 536 boundaries; the answer is as if there were one."""
    index = index_of(FULL)
    tell(index, stored(range(20_000), None, block_size=0))
    row = row_of(index, range(65_536))
    assert (row.lower, row.upper) == (0, 65_535)
    assert info(index).refused == {}


def windows(count: int, blocks: int, prompt: int) -> list[Event]:
    """The last blocks of a prompt that grows, by hashes alone, as a window group tells them."""
    spec = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": blocks + 1}
    ends = (prompt + k * blocks // 2 for k in range(count))
    return [stored(range(end - blocks, end), range(end), **spec) for end in ends]


def test_a_window_stored_again_and_again_costs_an_answer_each_boundary_once() -> None:
    index = index_of()
    for event in windows(count=64, blocks=256, prompt=8192):
        tell(index, event)
    row = row_of(index, range(20_000))
    index.check_integrity()
    assert row.lower == 0
    assert row.upper >= 8192 + 63 * 128


def test_states_stored_sparsely_and_shifted_cost_an_answer_each_boundary_once() -> None:
    index = index_of()
    tokens = list(range(16 * 2048))
    spec = {"kv_cache_spec_kind": "mamba"}
    tell(index, stored(range(1, 2049), tokens, **spec))
    tell(index, stored(range(2, 2050), tokens + tokens[:16], **spec))
    assert row_of(index, [*tokens, 1]).upper == len(tokens)
    index.check_integrity()


# --- fields that no request has ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model is None; expected text"),
        ({"model": "\ud800"}, "model is '\\ud800'; expected text"),
        ({"cache_salt": "a\ud800"}, "cache_salt is 'a\\ud800'; expected text"),
        ({"lora": 5}, "lora is 5; expected text"),
        ({"pods": "a"}, "pods is 'a'; expected a list of pod ids, or None"),
        ({"tiers": [1]}, "tiers is [1]; expected a list of tier names, or None"),
        ({"strategy": None}, "strategy is None; expected the name of a strategy"),
        ({"extra_keys": 5}, "extra_keys is 5; expected a list of MediaItem, or None"),
        ({"extra_keys": ["a"]}, "extra_keys[0].identifier is None; expected text"),
        (
            {"extra_keys": [MediaItem(identifier="a", offset=-1, length=1)]},
            "extra_keys[0].offset is -1; expected an integer from 0 to 4294967295",
        ),
        (
            {"extra_keys": [MediaItem(identifier="a", offset=0, length=2**32)]},
            "extra_keys[0].length is 4294967296; expected an integer from 0 to 4294967295",
        ),
        (
            {"extra_keys": [MediaItem(identifier="\ud800", offset=0, length=1)]},
            "extra_keys[0].identifier is '\\ud800'; expected text",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_field_that_no_request_has_is_named(fields: dict[str, Any], message: str) -> None:
    index = index_of(FULL)
    request = Request(**{"model": "m", "token_ids": [1, 2], **fields})
    for call in (index.score, index.explain):
        with pytest.raises(InvalidValueError) as raised:
            call(request)
        assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model is None; expected text"),
        ({"dp_size": 2**32}, "dp_size is 4294967296; expected an integer from 1 to 4294967295"),
        ({"loras": {"a": "\ud800"}}, "loras: name or path is '\\ud800'; expected text"),
    ],
    ids=["model", "dp_size", "loras"],
)
def test_an_argument_that_no_registration_has_is_named(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValueError) as raised:
        FleetIndex().register(POD, **{"model": "m", **fields})
    assert str(raised.value).startswith(message)


def test_a_list_of_tokens_that_shrinks_while_it_is_read_is_refused() -> None:
    tokens: list[Any] = [1, 2, 3]

    class Clearing:
        def __index__(self) -> int:
            tokens.clear()
            return 1

    tokens.insert(1, Clearing())
    with pytest.raises(InvalidValueError, match="had 4 items and has no item 2 any more"):
        index_of(FULL).score(Request(model="m", token_ids=tokens))
