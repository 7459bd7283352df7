"""A run that goes on, as its engine keeps it up to date. No call reads a cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbraid.ids import BlockId
from kvbraid.loads import Load, Target
from kvbraid.recovery.decision.run import GivenBack, Run
from kvbraid.recovery.ledger.open_loads import BEGINNING, Moment
from kvbraid.spec import GroupSpec


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRun:
    """The present run of a request: see `Run`. Without blocks, all that it says is old.

    Its engine knows how much is computed. `passing` are the blocks of its hit and its load that
    groups may give back before the run ends, and that are still in its tables, `since` when.
    `is_loading`: nothing is computed before the load has ended.
    """

    num_known: int = 0
    num_local: int = 0
    num_loaded: int = 0
    load: Load | None = None
    is_loading: bool = False
    delays_commit: bool = False
    passing: list[Target] = field(default_factory=list)
    since: Moment = BEGINNING

    def begin(self, num_known: int, num_local: int, num_loaded: int) -> None:
        """Begin a run: a hit, and what a load brings after it."""
        self.num_known, self.num_local, self.num_loaded = num_known, num_local, num_loaded
        self.load, self.is_loading, self.delays_commit, self.passing = None, False, False, []

    def rewind(self, groups: Sequence[GroupSpec], num_known: int, num_tokens: int) -> None:
        """Go back in place: what comes after is computed, and no longer a hit or loaded.

        What is known by now was not sampled from what is lost.
        """
        self.num_known = num_known
        self.num_local = min(self.num_local, num_tokens)
        self.num_loaded = min(self.num_loaded, num_tokens - self.num_local)
        self.delays_commit = False
        sizes = [group.block_size for group in groups]
        self.passing = [t for t in self.passing if t.position * sizes[t.group] < num_tokens]

    def give_back(self, tables: Sequence[Sequence[BlockId]]) -> list[GivenBack]:
        """Return which of the passing blocks have left the tables since the last call."""
        gone = [t for t in self.passing if tables[t.group][t.position] != t.block_id]
        self.passing = [t for t in self.passing if t not in gone] if gone else self.passing
        return [GivenBack(*target) for target in gone]

    def as_run(
        self,
        request: int,
        num_tokens: int,
        num_prompt_tokens: int,
        num_computed: int,
        num_in_flight: int,
    ) -> Run:
        """Return the run as it is decided on."""
        return Run(
            request=request,
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            num_known_tokens=self.num_known,
            num_local_tokens=self.num_local,
            num_loaded_tokens=self.num_loaded,
            num_processed_tokens=num_computed - num_in_flight,
            num_computed_tokens=num_computed,
            delays_commit=self.delays_commit,
        )
