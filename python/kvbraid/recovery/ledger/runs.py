"""The runs of one cache that go on: what they read of hits and loads, and what they gave back.

Invariant: a run starts when a request gets its first blocks, and ends when it gives them back.
What counts after that, and for how long, is the invariant of `released_blocks`. Tables are read
here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.loads import Load, Target
from kvbraid.recovery.decision.run import GivenBack, Run
from kvbraid.recovery.ledger.live import LiveRun
from kvbraid.recovery.ledger.loading import read_by_copies, targets_of
from kvbraid.recovery.ledger.released_blocks import Past, ReleasedBlocks
from kvbraid.spec import GroupSpec


class Runs:
    """The runs of one cache, by request. Reports on a load may come for `late_steps` steps after
    its end; `released` has what runs gave back."""

    def __init__(self, cache: CacheManager, late_steps: int) -> None:
        self._cache: Final = cache
        sizes = [group.block_size for group in self._groups]
        self.released: Final = ReleasedBlocks(cache.config.num_blocks, sizes, late_steps)

    @property
    def _groups(self) -> Sequence[GroupSpec]:
        return self._cache.config.topology.groups

    def note_hit(self, request: int, run: LiveRun) -> None:
        """Note the blocks of a hit that a run may give back: they may turn out to be garbage.

        The run has just got its first blocks.
        """
        self.released.start(request, run.num_local + run.num_loaded)
        if self.released.has_loads and not all(group.kind.is_full for group in self._groups):
            hit = targets_of(self._groups, self._cache.blocks(request), 0, run.num_local)
            run.since = self.released.now
            run.passing += self._passing(hit)
            self._note_found([GivenBack(*target) for target in run.passing])

    def note_load(self, run: LiveRun, load: Load) -> None:
        """Note that a load begins, into the blocks that a run has just got for it."""
        self.released.begin(load.number)
        self.released.hand_out([target.block_id for target in load.targets])
        run.load, run.is_loading, run.since = load, load.is_async, self.released.now
        run.passing += self._passing(load.targets)

    def loaded(self, request: int, run: LiveRun) -> list[Target]:
        """Return the blocks that a run's load fills, as far as its tables have them."""
        end, tables = run.num_local + run.num_loaded, self._cache.blocks(request)
        found = targets_of(self._groups, tables, run.num_local, end)
        return [*found] if run.num_loaded else []

    def _passing(self, targets: Iterable[Target]) -> list[Target]:
        return [target for target in targets if not self._groups[target.group].kind.is_full]

    def _note_found(self, blocks: Sequence[GivenBack]) -> None:
        if blocks and self.released.is_open:
            infos = self._cache.pool.describe([block.block_id for block in blocks])
            self.released.found(blocks, [info.author for info in infos])

    def note_copies(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Note copies that a step begins with, as (source, destination).

        Runs have read what their own blocks are copied from: a hit inside a block.
        """
        if copies and self.released.is_watching:
            since = self.released.now
            self.released.hand_out([destination for _, destination in copies])
            for request, read in read_by_copies(self._cache.tables, copies):
                self.released.give_back(request, [read], since)
                self._note_found([read])

    def follow(self, request: int, run: LiveRun) -> None:
        """Note which blocks of its hit and its load a run has given back."""
        if run.passing:
            gone = run.give_back(self._cache.blocks(request))
            load = run.load
            filled = {t[:2]: load.number for t in load.targets} if gone and load else {}
            self.released.give_back(request, gone, run.since, filled)

    def rewind(self, request: int, run: LiveRun, num_known: int, num_tokens: int) -> None:
        """Note that a run goes back in place."""
        run.rewind(self._groups, num_known, num_tokens)
        self.released.rewind(request, num_tokens)

    def catch_up(self, running: Mapping[int, LiveRun]) -> None:
        """Number anew what all runs that go on, and those that have ended, have read."""
        for request, run in running.items():
            self.follow(request, run)
        self.released.catch_up()

    def with_past(self, runs: Iterable[Run]) -> tuple[list[Run], Past]:
        """Return runs as a decision takes them, and then those that have ended, and what the past
        adds to them; after `catch_up`."""
        past = self.released.past()
        here = [run._replace(given_back=past.given_back.get(run.request, ())) for run in runs]
        return [*here, *past.ended], past
