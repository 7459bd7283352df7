"""The end of a picked request: from its prompt to what was delivered."""

from collections.abc import Iterator
from typing import Any

import pytest
from kvbraid.fleet import FleetIndex, Request, Scores, Seen
from kvbraid.ids import PodId

from tests.service.picks import (
    PROMPT,
    REUSED,
    Fleet,
    RememberingIndex,
    fleet_of,
    hold,
)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


@pytest.fixture
def remembering() -> Iterator[Fleet]:
    yield from fleet_of(index=RememberingIndex())


def gaps(answer: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(row["gap"], row["reason"], row["tokens"]) for row in answer["gaps"]]


def test_the_end_of_a_request_is_answered_with_its_rungs_and_the_reasons_of_its_gaps() -> None:
    for fleet in fleet_of(index=RememberingIndex()):
        hold(fleet.index, "b", 96)
        first = fleet.pick(request_id="r")
        assert first["pod"] == "b"
        assert fleet.reported("r", "first_token") == {
            "pick": "r", "status": "noted", "ladder": None,
        }  # fmt: skip
        ended = fleet.reported("r", "end", cached_tokens=80, prompt_tokens=160)
        assert ended["ladder"]["rungs"] == {
            "prompt": 160, "seen": 160, "best": 96, "chosen": 96, "lower": 96, "upper": 96,
            "delivered": 80,
        }  # fmt: skip
        assert gaps(ended["ladder"]) == [
            ("best", "evicted", 64), ("delivered", "engine_recomputed", 16),
        ]  # fmt: skip
        again = fleet.reported("r", "end", cached_tokens=80)
        assert again == {"pick": "r", "status": "unknown", "ladder": None}


def test_a_prompt_on_its_way_is_reused_before_its_events_tell(remembering: Fleet) -> None:
    remembering.pick(request_id="first", candidates=["a"])
    remembering.pick(request_id="second", candidates=["a"])
    ladder = remembering.reported("second", "end", cached_tokens=REUSED)["ladder"]
    assert (ladder["rungs"]["seen"], ladder["rungs"]["chosen"]) == (160, 0)
    assert gaps(ladder) == [("best", "event_lag", 160), ("above", "event_lag", REUSED)]


def test_a_rank_that_holds_the_whole_prompt_still_computes_its_end(fleet: Fleet) -> None:
    hold(fleet.index, "b", 160)
    fleet.pick(request_id="r", candidates=["b"])
    ladder = fleet.reported("r", "end", cached_tokens=REUSED)["ladder"]
    assert gaps(ladder) == [("best", "end_of_prompt", 16)]


def test_a_better_rank_that_drains_is_the_reason_of_what_is_computed_elsewhere(
    remembering: Fleet,
) -> None:
    hold(remembering.index, "b", 96)
    remembering.put("b", drain=True)
    remembering.pick(request_id="r")
    ladder = remembering.reported("r", "end")["ladder"]
    assert gaps(ladder) == [("best", "evicted", 64), ("chosen", "left_out", 96)]
    assert ladder["rungs"]["delivered"] is None


def test_a_hybrid_that_lacks_a_state_holds_tokens_that_it_cannot_resume_from(
    remembering: Fleet,
) -> None:
    groups = [{"kind": "full_attention", "block_size": 16}, {"kind": "mamba", "block_size": 16}]
    remembering.put("b", topology={"groups": groups})
    hold(remembering.index, "b", 128)
    remembering.pick(request_id="r", candidates=["b"])
    ladder = remembering.reported("r", "end", cached_tokens=0)["ladder"]
    assert gaps(ladder) == [("best", "state_missing", 160)]


def test_an_engine_that_counts_another_prompt_has_other_tokens(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    fleet.pick(request_id="r", candidates=["b"])
    ladder = fleet.reported("r", "end", cached_tokens=170, prompt_tokens=171)["ladder"]
    assert ladder["rungs"]["delivered"] == 160
    assert gaps(ladder)[1:] == [("above", "tokens_differ", 64)]


def test_the_sums_are_of_tokens_and_the_same_in_every_place() -> None:
    index = RememberingIndex()
    for fleet in fleet_of(index=index):
        assert fleet.client.get("/v1/ladder").json() == {"models": []}
        hold(fleet.index, "b", 96)
        for name, cached in (("1", 96), ("2", None)):
            fleet.pick(request_id=name, candidates=["b"])
            fleet.report(name, "end", **({} if cached is None else {"cached_tokens": cached}))
        index.remembered = Seen(32, 0, 1)
        fleet.pick(request_id="3", candidates=["b"], token_ids=[*PROMPT[:96], 7])
        fleet.report("3", "end", cached_tokens=0)
        fleet.pick(request_id="4")
        fleet.report("4", "failed")
        fleet.pick(request_id="5", token_ids=[])
        assert fleet.reported("5", "end", cached_tokens=0)["ladder"] is None
        (model,) = fleet.client.get("/v1/ladder").json()["models"]
        assert {name: model[name] for name in ("model", "ended", "reported", "raised")} == {
            "model": "m", "ended": 3, "reported": 2, "raised": 1,
        }  # fmt: skip
        assert model["rungs"] == {
            "prompt": 417, "seen": 416, "best": 288, "chosen": 288, "lower": 288, "upper": 288,
            "delivered": 96,
        }  # fmt: skip
        assert gaps(model) == [
            ("seen", "forgotten", 1), ("best", "evicted", 64), ("best", "event_lag", 64),
            ("delivered", "engine_recomputed", 96), ("delivered", "not_reported", 96),
        ]  # fmt: skip
        rungs = fleet.metrics("kvbraid_ladder_tokens_total")
        assert rungs == {
            f'{{model="m",rung="{name}"}}': tokens for name, tokens in model["rungs"].items()
        }
        assert fleet.metrics("kvbraid_ladder_gap_tokens_total") == {
            f'{{gap="{gap}",model="m",reason="{reason}"}}': tokens
            for gap, reason, tokens in gaps(model)
        }
        assert fleet.metrics("kvbraid_ladder_requests_total") == {
            '{model="m",what="ended"}': 3, '{model="m",what="reported"}': 2,
            '{model="m",what="raised"}': 1,
        }  # fmt: skip


def test_a_pod_that_is_removed_meanwhile_is_promised_nothing() -> None:
    class Gone(FleetIndex):
        def score(self, request: Request, *, with_seen: bool = False) -> Scores:
            scores = super().score(request, with_seen=with_seen)
            self.remove(PodId("a"))
            self.remove(PodId("b"))
            return scores

    for fleet in fleet_of(index=Gone()):
        fleet.pick(request_id="r")
        assert fleet.metrics("kvbraid_pick_bookings_total")['{what="removed_meanwhile"}'] == 1
        assert fleet.reported("r", "end", cached_tokens=0)["ladder"] is not None
