"""The hit ladder of a server as a table per model: rungs, and between them why they are lower.

Every number is a sum of tokens, and a share is that sum over the sum of all prompts.
"""

from collections.abc import Iterator
from typing import Final

from rich.console import Console

from kvbraid.errors import counted, printable
from kvbraid.report.tables import Column, Listing, Row, print_lines, print_listing
from kvbraid.service.answers import LadderAnswer, ModelLadder
from kvbraid.service.rungs import GapName

_COLUMNS: Final = (
    Column("rung", is_left=True),
    Column("lower because", is_left=True),
    Column("tokens"),
    Column("% of prompt"),
)
_NOTHING: Final = "no request has ended yet; POST /v1/picked reports the ends of picks"


def show_ladder(console: Console, answer: LadderAnswer) -> None:
    """Print a table for each model, from the prompts down to what was delivered."""
    for model in answer.models:
        told = f"{counted(model.ended, 'request')}, {model.reported} reported"
        title = printable(f"{model.model}: {told}")
        print_listing(console, Listing(columns=_COLUMNS, rows=list(_rows(model)), title=title))
        print_lines(console, _notes(model))
    if not answer.models:
        print_lines(console, [_NOTHING])


def _rows(model: ModelLadder) -> Iterator[Row]:
    """Each rung after the gaps that lead to it."""
    rungs = model.rungs
    yield _rung(model, "prompt", rungs.prompt)
    yield from _gaps(model, GapName.SEEN)
    yield _rung(model, "seen", rungs.seen)
    yield from _gaps(model, GapName.BEST)
    yield _rung(model, "best", rungs.best)
    yield from _gaps(model, GapName.CHOSEN)
    yield _rung(model, "chosen", rungs.chosen)
    yield from _gaps(model, GapName.DELIVERED)
    yield from _gaps(model, GapName.ABOVE, sign="+")
    yield _rung(model, "delivered", rungs.delivered)


def _gaps(model: ModelLadder, name: GapName, sign: str = "-") -> Iterator[Row]:
    rows = sorted((gap for gap in model.gaps if gap.gap is name), key=lambda gap: -gap.tokens)
    for gap in rows:
        yield "", gap.reason.value, f"{sign}{gap.tokens}", f"{sign}{_share(model, gap.tokens)}"


def _rung(model: ModelLadder, name: str, tokens: int | None) -> Row:
    if tokens is None:
        return name, "", "not known", ""
    return name, "", str(tokens), _share(model, tokens)


def _share(model: ModelLadder, tokens: int) -> str:
    return f"{100 * tokens / model.rungs.prompt:.1f}"


def _notes(model: ModelLadder) -> Iterator[str]:
    rungs = model.rungs
    yield f"the chosen ranks promised {rungs.lower} to {rungs.upper} tokens"
    if model.raised:
        yield f"{counted(model.raised, 'request')} with a rung below the next one, raised to it"
