"""`kvbraid pick-serve`, which also prints a line of JSON at the end of each request."""

from unittest.mock import patch

import click
import msgspec
from kvbraid.cli import main as kvbraid
from kvbraid.service.answers import PickedAnswer
from kvbraid.service.picking import Picking
from kvbraid.service.requests import ReportBody


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's pod was expected to reuse, in tokens, and what it did reuse.

    `lower` and `upper` are from events alone, `resumable` counts what was on its way as well.
    `delivered` is None if nobody has said.
    """

    name: str
    pod: str
    lower: int
    upper: int
    resumable: int
    delivered: int | None


def main() -> None:
    """Run the command line."""
    report = Picking.report

    def telling(self: Picking, told: ReportBody) -> PickedAnswer:
        rank, rungs = self.rank(told.pick), self.rungs(told.pick)
        answer = report(self, told)
        if told.event == "end" and rank is not None and rungs is not None:
            ended = Ended(
                name=told.pick,
                pod=rank[0],
                lower=rungs.lower,
                upper=rungs.upper,
                resumable=rungs.resumable,
                delivered=told.cached_tokens,
            )
            click.echo(msgspec.json.encode(ended))
        return answer

    with patch.object(Picking, "report", telling):
        kvbraid()
