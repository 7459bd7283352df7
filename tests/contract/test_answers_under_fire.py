"""Answers under fire: whatever a pod has published and a client asks, an answer is right and soon.

Sizes stand for times: where a test asks for more than a quadratic way could do in an hour, that it
ends at all is the assertion.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import BlockStored, Event, encode_batch
from kvbraid.fleet.answer import PodInfo, PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request, Strategy
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
    assert all(strip.held)
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
