"""Answers under fire: whatever a pod has published and a client asks, an answer is right and soon.

Sizes stand for times: where a test asks for more than a quadratic way could do in an hour, that it
ends at all is the assertion.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import BlockRemoved, BlockStored, Event, encode_batch
from kvbraid.fleet.answer import PodInfo, PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import MediaItem, Request, Strategy
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
    index = index_of()
    ahead = [list(range(1, LONG))]
    tell(index, stored([1], [0], kv_cache_spec_kind="full_attention", lookahead_token_ids=ahead))
    assert row_of(index, range(2 * LONG)).lower == 1
    assert row_of(index, [*range(LONG - 1), 5, 7]).lower == 0


def test_many_media_items_cost_a_long_request_nothing_more() -> None:
    index = index_of()
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
