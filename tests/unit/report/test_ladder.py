"""The hit ladder as a table: what is not known is said, and an empty one says why it is empty."""

from kvbraid.report.ladder import show_ladder
from kvbraid.service.answers import GapRow, LadderAnswer, ModelLadder, RungTokens
from kvbraid.service.rungs import GapName, GapReason

from tests.unit.report.terminal import WIDTHS, shown_at

RUNGS = RungTokens(
    prompt=10**12, seen=None, best=10**12, chosen=10**12, lower=0, upper=10**12, delivered=10**12
)
HUGE = ModelLadder(
    model="m", ended=1, reported=1, raised=1, rungs=RUNGS,
    gaps=[
        GapRow(gap=gap, reason=GapReason.OTHER_POD_FOR_LOAD, tokens=10**12 - 1)
        for gap in (GapName.ABOVE, GapName.CHOSEN)
    ],
)  # fmt: skip


def test_a_ladder_without_requests_says_where_they_come_from() -> None:
    shown = shown_at(80, lambda console: show_ladder(console, LadderAnswer(models=[])))
    assert shown == "no request has ended yet; POST /v1/picked reports the ends of picks\n"


def test_trillions_of_tokens_fit_into_every_terminal() -> None:
    for width in WIDTHS:
        shown = shown_at(width, lambda console: show_ladder(console, LadderAnswer(models=[HUGE])))
        assert max(map(len, shown.splitlines())) <= 80
        assert ["seen", "not", "known"] in map(str.split, shown.splitlines())
        assert "           other_pod_for_load  +999999999999       +100.0\n" in shown
        assert "           other_pod_for_load  -999999999999       -100.0\n" in shown
        assert shown.endswith("1 request with a rung below the next one, raised to it\n")


def test_a_name_of_a_model_is_plain_text() -> None:
    model = ModelLadder(model="[red]\x1b[2J", ended=1, reported=0, raised=0, rungs=RUNGS, gaps=[])
    shown = shown_at(80, lambda console: show_ladder(console, LadderAnswer(models=[model])))
    assert shown.startswith("[red]\\x1b[2J: 1 request, 0 reported\n")
