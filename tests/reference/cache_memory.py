"""What the brute-force model of the cache remembers, and what it answers to a step."""

from collections import Counter
from dataclasses import dataclass, field, replace

from kvbraid.hashing import ExtraKeys

from tests.reference.cache_groups import Group, Table
from tests.reference.cache_pool import Pool


@dataclass
class Request:
    tokens: list[int]
    num_prompt_tokens: int
    extra: ExtraKeys
    lora_id: int | None
    hashes: list[bytes]
    tables: list[Table]
    given_hashes: bool = False
    num_computed_tokens: int = 0
    junction: int = 0

    def __deepcopy__(self, _memo: dict[int, object]) -> "Request":
        """The same, without looking at every token: a step is tried on a copy."""
        return replace(
            self,
            tokens=[*self.tokens],
            hashes=[*self.hashes],
            tables=[replace(table, blocks=[*table.blocks]) for table in self.tables],
        )


@dataclass(frozen=True)
class Fitted:
    """`new[i][g]`: what request i got in group g, as far as requests fitted."""

    new: list[list[list[int]]]

    @property
    def num_fit(self) -> int:
        return len(self.new)

    def new_blocks(self, i: int) -> list[list[int]]:
        return self.new[i]


@dataclass
class Memory:
    """All that changes."""

    pool: Pool
    groups: list[Group]
    requests: dict[int, Request] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    preempted: set[int] = field(default_factory=set)  # Requests that ran, and do not now.
    being_copied: list[int] = field(default_factory=list)  # Ends of the copies of this step.
    counts: Counter[str] = field(default_factory=Counter)
