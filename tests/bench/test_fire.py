"""The index reads what the bench `fire` sends, and the bench's figures reach the row's line."""

import json
from array import array

import pytest
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId

from bench.fire import inputs as fire_inputs
from bench.fire.bench_index import ROWS, bystander_scored, given_up, index_of, request_of
from bench.fire.inputs import Shape
from bench.harness.measure import Figures
from bench.harness.row import line

SHAPES: list[Shape] = [
    fire_inputs.sparse_halves,
    fire_inputs.backwards,
    fire_inputs.backwards_apart,
    fire_inputs.late_parents,
    fire_inputs.late_root,
    fire_inputs.evicted_tries,
    fire_inputs.sparse_in_turn,
    fire_inputs.sparse_overlap,
    fire_inputs.clears_of_names,
    fire_inputs.clears_of_blocks,
    fire_inputs.one_tag,
    fire_inputs.channels,
    fire_inputs.growing_windows,
    fire_inputs.shifted_states,
    fire_inputs.floating_trie,
    fire_inputs.lookahead,
    fire_inputs.media_items,
    fire_inputs.explained,
    fire_inputs.many_blocks,
]

READ_AND_DOUBTED = {"contradicts_earlier_place", "two_hashes_at_one_boundary"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_an_input_is_read_and_at_most_doubted(shape: Shape) -> None:
    fire = shape(32)
    index = index_of(fire)
    for payload in fire.batches:
        index.apply(PodId("pod0"), payload)
    index.check_integrity()
    pods = {pod.pod: pod for pod in index.pods()}
    assert pods[PodId("pod0")].messages == len(fire.before) + len(fire.batches)
    assert set(pods[PodId("pod0")].refused) <= READ_AND_DOUBTED
    if fire.prompt is not None:
        assert len(index.score(request_of(fire)).rows) == fire.num_pods


@pytest.mark.parametrize(
    "shape",
    [
        fire_inputs.sparse_halves,
        fire_inputs.growing_windows,
        fire_inputs.shifted_states,
        fire_inputs.floating_trie,
    ],
    ids=lambda shape: shape.__name__,
)
def test_a_score_looks_where_the_undecided_may_stand(shape: Shape) -> None:
    # Where nothing can be excluded at all, nothing is looked at, and the row times nothing.
    fire = shape(2)
    index = index_of(fire)
    for payload in fire.batches:
        index.apply(PodId("pod0"), payload)
    elsewhere = Request(model="model", token_ids=array("I", [1_000_000]) * 64)
    assert index.score(elsewhere).rows[0].upper == 0
    assert index.score(request_of(fire)).rows[0].upper > 0


def test_the_bystander_is_scored_whatever_goes_on() -> None:
    index, act = given_up(8)
    with bystander_scored(index) as waits:
        act()
    assert waits
    request = Request(model="other", token_ids=array("I", range(64)))
    assert index.score(request).rows[0].lower == 32


def test_every_row_has_its_growth_and_a_score_beside_it() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.name.startswith("fire_")
        assert {"at_n", "at_2n", "score_wait_ms"} <= row.beside.keys()


def test_the_line_of_a_row_has_what_stands_beside_it() -> None:
    row = ROWS[0]
    taken = {name: Figures((2.0,)) for name in ("ours", *row.beside)}
    figures = json.loads(line(row, taken))
    assert (figures["ours"], figures["rival"], figures["met"]) == (2.0, None, True)
    assert figures["beside"] == dict.fromkeys(row.beside, 2.0)
    alone = json.loads(line(row, {"ours": Figures((2.0,))}))
    assert "beside" not in alone
