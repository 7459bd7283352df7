"""POST /v1/strips: the cells of a terminal's strips, and blocks that would help."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kvbraid.fleet import Request
from kvbraid.fleet.answer import Limiting
from kvbraid.ids import GroupId, PodId, PodState
from kvbraid.resume import needed_blocks
from kvbraid.service.answers import DrawnRow, ExplainGroup, ExplainRow
from kvbraid.service.strips import MOST_CELLS, MOST_SPANS, draw
from kvbraid.spec import GroupSpec, SpecKind

from tests.service.in_process import TestClient

SIZE = 16
KINDS = (SpecKind.FULL_ATTENTION, SpecKind.SLIDING_WINDOW, SpecKind.MAMBA)


def spec_of(kind: SpecKind) -> GroupSpec:
    window = 40 if kind is SpecKind.SLIDING_WINDOW else None
    return GroupSpec(kind=kind, block_size=SIZE, window=window)


def accepts(spec: GroupSpec, held: list[bool], boundary: int) -> bool:
    return all(block < len(held) and held[block] for block in needed_blocks(spec, boundary))


def group_of(number: int, kind: SpecKind, held: list[bool]) -> ExplainGroup:
    spec = spec_of(kind)
    boundaries = range(SIZE, SIZE * len(held) + 1, SIZE)
    return ExplainGroup(
        group=GroupId(number), kind=kind, block_size=SIZE, window=spec.window, held=held,
        accepted=[end for end in boundaries if accepts(spec, held, end)],
    )  # fmt: skip


def drawn(groups: list[ExplainGroup], num_tokens: int, limiting: Limiting | None) -> DrawnRow:
    row = ExplainRow(
        pod=PodId("a"), dp_rank=0, state=PodState.EXACT, lower=0, upper=0, limiting=limiting,
        reason="", groups=groups,
    )  # fmt: skip
    (answer,) = draw(Request(model="m", token_ids=[1] * num_tokens), [row]).pods
    return answer


HELD = st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=3, max_size=3)


@given(HELD, st.integers(1, 12), st.sampled_from(range(3)))
def test_with_the_missing_blocks_the_limiting_group_accepts_the_boundary(
    held: list[list[bool]], block: int, number: int
) -> None:
    groups = [group_of(n, kind, held[n]) for n, kind in enumerate(KINDS)]
    boundary, spec = block * SIZE, spec_of(KINDS[number])
    assume(not accepts(spec, held[number], boundary))
    missing = drawn(groups, 12 * SIZE, Limiting(GroupId(number), boundary)).missing
    assert missing is not None
    assert missing.num_blocks == sum((to - begin) // SIZE for begin, to in missing.spans) > 0
    helped = list(held[number])
    for begin, to in missing.spans:
        assert not any(helped[begin // SIZE : to // SIZE])
        helped[begin // SIZE : to // SIZE] = [True] * ((to - begin) // SIZE)
    assert accepts(spec, helped, boundary)


@given(HELD)
def test_common_boundaries_are_those_that_every_group_accepts(held: list[list[bool]]) -> None:
    groups = [group_of(n, kind, held[n]) for n, kind in enumerate(KINDS)]
    row = drawn(groups, 12 * SIZE, None)
    assert row.unit == SIZE
    for cell in range(12):
        every = all(accepts(spec_of(k), held[n], (cell + 1) * SIZE) for n, k in enumerate(KINDS))
        assert (cell in (row.common or [])) == every
    assert [group.cells for group in row.groups] == [
        "".join("#" if block else "." for block in blocks) for blocks in held
    ]
    assert [group.num_held for group in row.groups] == [sum(blocks) for blocks in held]


def test_a_long_prompt_has_as_many_cells_as_a_narrow_page_has_room_for() -> None:
    held = [number % 3 == 0 for number in range(10_000)]
    row = drawn(
        [group_of(0, SpecKind.FULL_ATTENTION, held)], 160_000, Limiting(GroupId(0), 160_000)
    )
    (group,) = row.groups
    assert 0 < len(group.cells) <= MOST_CELLS
    assert set(group.cells) == {"+"}
    assert row.missing is not None
    assert len(row.missing.spans) == MOST_SPANS
    assert row.missing.num_blocks == 6666


@pytest.mark.parametrize("body", [{"model": "x"}, {"model": "m", "token_ids": [1, "a"]}])
def test_what_explain_refuses_is_refused(client: TestClient, body: dict[str, object]) -> None:
    both = [client.post(f"/v1/{route}", json=body) for route in ("explain", "strips")]
    assert both[0].status_code == both[1].status_code >= 400
    assert both[0].json() == both[1].json()
