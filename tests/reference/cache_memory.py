"""What the brute-force model of the cache remembers, and what it answers to a step."""

import copy
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvbraid.cache import Findable, NoFit
from kvbraid.hashing import ExtraKeys

from tests.reference.cache_groups import Group, Table
from tests.reference.cache_pool import Pool

Part = TypeVar("Part")


def own(item: Part) -> Part:
    """Copy lists, sets and dictionaries; what they hold never changes. Tests make many copies."""
    twin = copy.copy(item)
    for name, value in vars(item).items():
        if isinstance(value, list | set | dict):
            setattr(twin, name, value.copy())
    return twin


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
    last_step: tuple[int, int] = (0, 0)  # The tokens before it, and after it.

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
    reason: NoFit | None = None

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
    written: dict[int, int] = field(default_factory=dict)  # See `CacheModel._note_written`.
    held: Counter[int] = field(default_factory=Counter)  # References that the caller has to drop.
    counts: Counter[str] = field(default_factory=Counter)
    findable: list[Findable] = field(default_factory=list)
    has_steps: bool = False
    unwritten: list[tuple[int, int]] = field(default_factory=list)  # Requests and their blocks,
    num_given: int = 0  # of which so many belong to steps that the device was given.

    def __deepcopy__(self, memo: dict[int, object]) -> "Memory":
        twin = own(self)
        twin.pool = copy.deepcopy(self.pool, memo)
        twin.groups = [own(group) for group in self.groups]
        for number, request in self.requests.items():
            twin.requests[number] = own(request)
            twin.requests[number].tables = [own(table) for table in request.tables]
        return twin
