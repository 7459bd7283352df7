"""The rungs of one request: their order, gaps without a rest, and one reason for each."""

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.fleet import Columns, Request
from kvbraid.ids import PodId, PodState
from kvbraid.policy import Router
from kvbraid.service.ladder import MOST_MODELS, Ladder
from kvbraid.service.rungs import (
    REASONS,
    Delivery,
    GapName,
    GapReason,
    Rungs,
    gaps_of,
    rungs_of,
)
from msgspec.structs import replace

R = GapReason
RUNGS = Rungs(
    model="m", prompt=160, seen=160, best=96, chosen=96, lower=96, upper=96, candidates=96,
    in_flight=96, resumable=96, present=96, has_forgotten=False, is_raised=False,
)  # fmt: skip


class Memory(NamedTuple):
    tokens: int
    num_forgotten: int = 0


@dataclass
class Told:
    """An index that answers with given columns."""

    told: Columns
    seen: Memory | None

    def score(self, request: Request, *, with_seen: bool = False) -> "Told":
        del request, with_seen
        return self

    def columns(self) -> Columns:
        return self.told

    def promise(self, *_: object, **__: object) -> int:
        return 1

    def withdraw(self, promise: int) -> bool:
        return promise == 1

    def num_promised(self) -> int:
        return 1


def columns(*rows: tuple[int, int, int, int, int, int]) -> Columns:
    """Columns of ranks by lower, expected, upper, present, and both soon."""
    lower, expected, upper, present, soon, present_soon = zip(*rows, strict=True)
    return Columns(
        ranks=[(PodId(f"p{number}"), 0) for number in range(len(rows))],
        states=[PodState.EXACT] * len(rows),
        lower=lower, upper=upper, expected=expected, present=present,
        soon=soon, expected_soon=soon, present_soon=present_soon,
    )  # fmt: skip


def rungs_at(told: Columns, prompt: int, memory: Memory | None, only: int = 0) -> Rungs | None:
    """The rungs of a pick among all ranks, or only among the first few."""
    kept: list[Rungs | None] = []
    router = Router(
        Told(told, memory),
        chance=Random(1),
        note=lambda decision: kept.append(rungs_of(decision)),
    )
    candidates = told.ranks[:only] if only else None
    router.pick("r", Request(model="m", token_ids=range(prompt)), now=0.0, candidates=candidates)
    (rungs,) = kept
    return rungs


@st.composite
def asked(draw: st.DrawFn) -> tuple[Columns, int, Memory | None, int]:
    prompt = draw(st.integers(1, 200))
    tokens = st.integers(0, prompt)
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        lower, expected, upper = sorted(draw(st.tuples(tokens, tokens, tokens)))
        present, soon = draw(tokens), max(expected, draw(tokens))
        rows.append((lower, expected, upper, present, soon, max(present, draw(tokens))))
    memory = draw(st.none() | st.builds(Memory, st.integers(0, 220), st.integers(0, 1)))
    return columns(*rows), prompt, memory, draw(st.integers(0, len(rows)))


@given(
    asked=asked(),
    share=st.none() | st.floats(0, 1),
    differs=st.booleans(),
)
def test_gaps_lead_from_the_prompt_to_what_was_delivered_each_with_one_reason(
    asked: tuple[Columns, int, Memory | None, int], share: float | None, *, differs: bool
) -> None:
    told, prompt, memory, _ = asked
    rungs = rungs_at(*asked)
    assert rungs is not None
    top = rungs.prompt if rungs.seen is None else rungs.seen
    assert rungs.prompt == prompt >= top >= rungs.best >= rungs.candidates >= rungs.chosen >= 0
    assert rungs.lower <= rungs.chosen <= rungs.upper
    assert (rungs.seen is None) is (memory is None)
    assert rungs.is_raised is (memory is not None and memory.tokens < max(told.expected))

    delivered = None if share is None else round(share * prompt)
    gaps = gaps_of(rungs, Delivery(delivered, differs))
    signs = {name: 1 if name is GapName.ABOVE else -1 for name in GapName}
    assert prompt + sum(signs[gap.name] * gap.tokens for gap in gaps) == (delivered or 0)
    assert len({gap.name for gap in gaps}) == len(gaps)
    assert all(gap.tokens > 0 and gap.reason in REASONS[gap.name] for gap in gaps)
    assert not {GapName.DELIVERED, GapName.ABOVE} <= {gap.name for gap in gaps}


@given(asked=st.lists(st.tuples(asked(), st.none() | st.floats(0, 1)), max_size=5))
def test_sums_of_requests_have_no_rest_either(
    asked: list[tuple[tuple[Columns, int, Memory | None, int], float | None]],
) -> None:
    ladder = Ladder()
    for (told, prompt, _, only), share in asked:
        rungs = rungs_at(told, prompt, Memory(prompt), only)
        assert rungs is not None
        ladder.add(rungs, Delivery(None if share is None else round(share * prompt)))
    for model in ladder.answer().models:
        lost = sum(gap.tokens for gap in model.gaps if gap.gap is not GapName.ABOVE)
        won = sum(gap.tokens for gap in model.gaps if gap.gap is GapName.ABOVE)
        assert model.rungs.prompt - lost + won == model.rungs.delivered
        assert model.ended == len(asked)
        assert model.reported == sum(share is not None for _, share in asked)


@pytest.mark.parametrize(
    ("change", "reason", "tokens"),
    [
        ({"seen": 64, "best": 64}, R.NEVER_SEEN, 96),
        ({"seen": 64, "best": 64, "has_forgotten": True}, R.FORGOTTEN, 96),
    ],
)
def test_what_was_not_seen_was_never_there_unless_something_is_forgotten(
    change: dict[str, Any], reason: GapReason, tokens: int
) -> None:
    gaps = gaps_of(replace(RUNGS, **change), Delivery(96))
    assert (GapName.SEEN, reason, tokens) in gaps


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, R.EVICTED),
        ({"seen": None}, R.UNKNOWN),
        ({"present": 144}, R.STATE_MISSING),
        ({"present": 128}, R.STATE_MISSING),  # As much as was evicted.
        ({"present": 112}, R.EVICTED),
        ({"present": 160}, R.END_OF_PROMPT),
        ({"in_flight": 144}, R.EVENT_LAG),
        ({"in_flight": 112, "present": 160}, R.END_OF_PROMPT),
        ({"in_flight": 144, "present": 160}, R.EVENT_LAG),
        ({"seen": None, "in_flight": 160}, R.EVENT_LAG),
        ({"seen": 112, "in_flight": 160, "present": 160}, R.EVENT_LAG),
    ],
)
def test_what_no_rank_can_reuse_now_has_the_reason_of_its_largest_part(
    change: dict[str, Any], reason: GapReason
) -> None:
    rungs = replace(RUNGS, **change)
    (gap,) = (gap for gap in gaps_of(rungs, Delivery(96)) if gap.name is GapName.BEST)
    assert (gap.reason, gap.tokens) == (reason, (rungs.seen or rungs.prompt) - rungs.best)


@pytest.mark.parametrize(
    ("candidates", "reason"), [(96, R.OTHER_POD_FOR_LOAD), (16, R.LEFT_OUT), (32, R.LEFT_OUT)]
)
def test_a_better_rank_was_left_out_or_not_chosen(candidates: int, reason: GapReason) -> None:
    rungs = replace(RUNGS, chosen=0, lower=0, upper=0, candidates=candidates)
    assert (GapName.CHOSEN, reason, 96) in gaps_of(rungs, Delivery(0))


OPEN = {"lower": 48, "upper": 112}


@pytest.mark.parametrize(
    ("change", "delivery", "gap"),
    [
        ({}, Delivery(96), None),
        ({}, Delivery(95), (GapName.DELIVERED, R.ENGINE_RECOMPUTED, 1)),
        ({}, Delivery(0), (GapName.DELIVERED, R.ENGINE_RECOMPUTED, 96)),
        ({}, Delivery(0, differs=True), (GapName.DELIVERED, R.TOKENS_DIFFER, 96)),
        ({}, Delivery(None, differs=True), (GapName.DELIVERED, R.TOKENS_DIFFER, 96)),
        ({}, Delivery(None), (GapName.DELIVERED, R.NOT_REPORTED, 96)),
        (OPEN, Delivery(48), (GapName.DELIVERED, R.UNCERTAIN, 48)),
        (OPEN, Delivery(47), (GapName.DELIVERED, R.ENGINE_RECOMPUTED, 49)),
        (OPEN, Delivery(112), (GapName.ABOVE, R.UNCERTAIN, 16)),
        (OPEN, Delivery(113), (GapName.ABOVE, R.TOKENS_DIFFER, 17)),
        (OPEN | {"resumable": 144}, Delivery(112), (GapName.ABOVE, R.EVENT_LAG, 16)),
        ({"resumable": 144}, Delivery(144), (GapName.ABOVE, R.EVENT_LAG, 48)),
        ({"resumable": 144}, Delivery(145), (GapName.ABOVE, R.TOKENS_DIFFER, 49)),
        (
            {"resumable": 144},
            Delivery(144, differs=True),
            (GapName.ABOVE, R.TOKENS_DIFFER, 48),
        ),
    ],
)
def test_what_was_delivered_is_compared_with_what_was_promised(
    change: dict[str, Any], delivery: Delivery, gap: tuple[GapName, GapReason, int] | None
) -> None:
    last = gaps_of(replace(RUNGS, seen=96, prompt=160, **change), delivery)[1:]
    assert last == ([] if gap is None else [gap])


def test_every_reason_is_of_some_gap() -> None:
    assert set(REASONS) == set(GapName)
    assert frozenset().union(*REASONS.values()) == set(GapReason)


def test_an_empty_prompt_is_on_no_rung() -> None:
    assert rungs_at(columns((0, 0, 0, 0, 0, 0)), 0, None) is None


def test_a_rank_that_was_no_candidate_is_the_best_all_the_same() -> None:
    rungs = rungs_at(columns((0, 0, 0, 0, 16, 16), (96, 96, 96, 96, 96, 96)), 160, None, only=1)
    assert rungs is not None
    assert (rungs.best, rungs.candidates, rungs.chosen, rungs.resumable) == (96, 0, 0, 16)


def test_names_of_models_are_not_kept_without_end() -> None:
    ladder = Ladder()
    for number in range(MOST_MODELS + 3):
        ladder.add(replace(RUNGS, model=f"m{number}"), Delivery(96))
    ladder.add(replace(RUNGS, model="m0"), Delivery(96))
    ended = {model.model: model.ended for model in ladder.answer().models}
    assert len(ended) == MOST_MODELS + 1
    assert (ended["m0"], ended["m1"], ended["other"]) == (2, 1, 3)
