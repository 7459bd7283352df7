"""docs/ladder.md: its table has every reason of each gap, and its example is what is printed."""

from itertools import product

from kvbraid.report.ladder import show_ladder
from kvbraid.service.answers import LadderAnswer, RungTokens
from kvbraid.service.ladder import Ladder
from kvbraid.service.rungs import REASONS, Delivery, Rungs
from msgspec.structs import replace

from tests.docs.markdown import DOCS, blocks, codes, tables
from tests.unit.report.terminal import shown_at

PAGE = "ladder.md"
WHOLE = Rungs(
    model="m", prompt=200, seen=200, best=200, chosen=200, lower=200, upper=200, candidates=200,
    in_flight=200, resumable=200, present=200, has_forgotten=False, is_raised=False,
)  # fmt: skip
NOWHERE = replace(WHOLE, best=0, chosen=0, lower=0, upper=0, candidates=0, in_flight=0, present=0)
REQUESTS = (
    (replace(NOWHERE, seen=24, resumable=0), Delivery(0)),
    (replace(NOWHERE, in_flight=64, resumable=64), Delivery(64)),
    (replace(WHOLE, chosen=104, lower=96, upper=112, resumable=104), Delivery(None)),
    (WHOLE, Delivery(120)),
)


def answer() -> LadderAnswer:
    ladder = Ladder()
    for rungs, delivery in REQUESTS:
        ladder.add(rungs, delivery)
    return ladder.answer()


def test_the_example_is_what_the_command_prints() -> None:
    (shown,) = (block.text for block in blocks(DOCS / PAGE) if block.language == "console")
    command, _, output = shown.partition("\n")
    assert command == "$ kvbraid ladder"
    for columns in (None, 80):
        printed = shown_at(columns, lambda console: show_ladder(console, answer()))
        assert [line.rstrip() for line in printed.splitlines()] == output.splitlines()


def test_the_table_has_every_reason_of_each_gap() -> None:
    (table,) = tables(PAGE, "Reasons, and what to do")
    listed = [pair for gap, reason, *_ in table for pair in product(codes(gap), codes(reason))]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {
        (gap.value, reason.value) for gap, reasons in REASONS.items() for reason in reasons
    }


def test_the_rungs_are_listed_from_the_prompt_down() -> None:
    text = (DOCS / PAGE).read_text().split("\n## ")[0]
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert listed == [name for name in RungTokens.__struct_fields__ if name not in BOUNDS]


BOUNDS = {"lower", "upper"}
"""Of `chosen`, on whose row they stand."""
