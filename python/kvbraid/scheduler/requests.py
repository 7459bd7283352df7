"""What a scheduler knows of a request, and of the run that it is in. No call reads a cache."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kvbraid.hashing import ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.recovery.counts import PromptCounts
from kvbraid.recovery.run import GivenBack, Run
from kvbraid.recovery.transfers import Load, Target
from kvbraid.scheduler.step import Scheduled


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request that has not ended; in tokens.

    `in_flight` has the parts of steps whose output still counts, by step. The fields after it
    describe the present run, which starts when the request gets blocks: see `recovery.run`.
    """

    number: int
    prompt: Sequence[int]
    extra: ExtraKeys
    max_tokens: int
    stop_tokens: Collection[int]
    counts: PromptCounts
    outputs: list[int] = field(default_factory=list)
    may_load: bool = True
    run: int = 0
    in_flight: dict[int, Scheduled] = field(default_factory=dict)

    num_known: int = 0
    num_local: int = 0
    num_loaded: int = 0
    num_computed: int = 0
    junction: int = 0
    load: Load | None = None
    is_loading: bool = False
    delays_commit: bool = False
    loaded: list[Target] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """The tokens that are known."""
        return len(self.prompt) + len(self.outputs)

    @property
    def num_expected(self) -> int:
        """The known tokens, and those that steps in flight sample if every draft is accepted."""
        parts = self.in_flight.values()
        return self.num_tokens + sum(1 + part.num_drafts for part in parts if part.samples)

    @property
    def num_in_flight(self) -> int:
        """The tokens of steps in flight."""
        return sum(part.num_tokens for part in self.in_flight.values())

    @property
    def num_processed(self) -> int:
        """The tokens of steps that have ended, and those that were not computed here."""
        return self.num_computed - self.num_in_flight

    @property
    def num_to_compute(self) -> int:
        """How many tokens are computed at most: the last one of an output never is."""
        return max(len(self.prompt), self.max_tokens - 1)

    def start(self, num_local: int, num_loaded: int, junction: int) -> None:
        """Begin a run: a hit, and what a load brings after it."""
        self.num_known, self.junction, self.may_load = self.num_tokens, junction, True
        self.num_local, self.num_loaded = num_local, num_loaded
        self.num_computed = num_local + num_loaded
        self.load, self.is_loading, self.delays_commit, self.loaded = None, False, False, []
        self.run += 1
        self.counts.started(num_local, num_loaded)

    def rewind(self, num_tokens: int) -> None:
        """Go back in place: what comes after is computed, and no longer a hit or loaded.

        The tokens that are known by now were not sampled from what is lost.
        """
        self.num_local = min(self.num_local, num_tokens)
        self.num_loaded = min(self.num_loaded, num_tokens - self.num_local)
        self.num_computed, self.num_known = num_tokens, self.num_tokens
        self.is_loading = self.delays_commit = False

    def give_back(self, tables: Sequence[Sequence[BlockId]]) -> list[GivenBack]:
        """Return which loaded blocks have left the tables since the last call."""
        gone = [t for t in self.loaded if tables[t.group][t.position] != t.block_id]
        self.loaded = [t for t in self.loaded if t not in gone] if gone else self.loaded
        return [GivenBack(*target) for target in gone]

    def as_run(
        self,
        given_back: Sequence[GivenBack],
        ended_tables: Sequence[Sequence[BlockId]] | None = None,
    ) -> Run:
        """Return the run as recovery sees it."""
        computed = self.num_computed
        if self.is_loading:  # The last token is computed, even if it is loaded, too.
            computed = min(computed, self.num_tokens - 1)
        return Run(
            request=self.number,
            num_tokens=self.num_tokens,
            num_prompt_tokens=len(self.prompt),
            num_known_tokens=self.num_known,
            num_local_tokens=self.num_local,
            num_loaded_tokens=self.num_loaded,
            num_processed_tokens=computed - self.num_in_flight,
            num_computed_tokens=computed,
            delays_commit=self.delays_commit,
            given_back=given_back,
            ended_tables=ended_tables,
        )
