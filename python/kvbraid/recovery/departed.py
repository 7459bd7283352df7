"""Blocks that runs have used and given back, as long as it may matter what was in them.

Its law: a loaded block that its run has given back counts as long as the run lasts, and the tables
of a run that has ended count until its last step is processed. A block that is handed out again
holds something else, and no longer counts. Nothing here reads a cache.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.recovery.run import GivenBack, Run

_NULL_BLOCK: Final = BlockId(0)


class Departed:
    """The ledger of one cache."""

    def __init__(self) -> None:
        self._given_back: Final[dict[int, list[GivenBack]]] = {}
        self._ended: list[tuple[int, Run]] = []
        self._blocks: Final[set[int]] = set()

    def __bool__(self) -> bool:
        """Whether any block counts that its run no longer holds."""
        return bool(self._blocks)

    def give_back(self, request: int, gone: Iterable[GivenBack]) -> None:
        """Note loaded blocks that are no longer in the tables of a run."""
        new = list(gone)
        if new:
            self._given_back.setdefault(request, []).extend(new)
            self._blocks.update(each.block_id for each in new)

    def end(self, run: Run, last_step: int) -> None:
        """Note a run that has given its blocks back while steps, up to `last_step`, use them."""
        self._ended.append((last_step, run))
        self._blocks.update(block for table in run.ended_tables or () for block in table)

    def leave(self, request: int) -> None:
        """Forget what a run has given back, because it ends."""
        self._given_back.pop(request, None)

    def hand_out(self, block_ids: Iterable[int]) -> None:
        """Note that blocks hold something new."""
        new = self._blocks.intersection(block_ids)
        if new:
            self._blocks.difference_update(new)
            self._ended = [(last, _without(run, new)) for last, run in self._ended]
            for request, gone in self._given_back.items():
                self._given_back[request] = [g for g in gone if g.block_id not in new]

    def processed(self, step: int) -> None:
        """Forget the runs whose last step this is, or one before it."""
        self._ended = [(last, run) for last, run in self._ended if last > step]
        if not self._ended and not self._given_back:
            self._blocks.clear()

    def given_back(self, request: int) -> Sequence[GivenBack]:
        """Return what the present run of a request has given back."""
        return self._given_back.get(request, ())

    @property
    def ended(self) -> list[Run]:
        """The runs that have ended while steps of them are in flight."""
        return [run for _, run in self._ended]


def _without(run: Run, blocks: set[int]) -> Run:
    tables = [
        [_NULL_BLOCK if block in blocks else block for block in table]
        for table in run.ended_tables or ()
    ]
    gone = [each for each in run.given_back if each.block_id not in blocks]
    return run._replace(ended_tables=tables, given_back=gone)
