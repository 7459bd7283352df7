"""What a small world is made of, besides the scheduler and the cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvbraid.loads import Failures, GroupBlock, Record
from kvbraid.scheduler import Finish, Load, Offer, Query, Step, Target


class Script:
    """Answers to be given, in order; after them the first of each. Knows what could be said."""

    def __init__(self, answers: Sequence[int] = ()) -> None:
        self._answers = answers
        self.given: list[tuple[int, int]] = []
        self.said: list[str] = []

    def choose(self, options: Sequence[str]) -> int:
        at = len(self.given)
        answer = self._answers[at] if at < len(self._answers) else 0
        self.given.append((answer, len(options)))
        self.said.append(options[answer])
        return answer

    def next(self) -> "Script | None":
        """The script after this one, once this one was played; None after the last one."""
        given = list(self.given)
        while given:
            answer, count = given.pop()
            if answer + 1 < count:
                return Script([*(each for each, _ in given), answer + 1])
        return None


class WorldTiers:
    """A tier that has everything. The script says what it offers."""

    def __init__(self) -> None:
        self.choose: Callable[[Query], Offer | None] = lambda _: None

    def lookup(self, query: Query) -> Offer | None:
        return self.choose(query)

    def forget_blocks(self, block_ids: object) -> Failures:
        del block_ids
        return Failures()

    def drop(self, record: Record) -> None: ...

    def back_off(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """Targets of a load that hold garbage.

    `counts`: it was reported while its run went on, so nothing may read it any more.
    """

    load: Load
    targets: tuple[Target, ...]
    is_reported: bool = False
    counts: bool = False

    @property
    def failures(self) -> Failures:
        return Failures(group_blocks=[GroupBlock(t.group, t.block_id) for t in self.targets])

    @property
    def places(self) -> Failures:
        """The same by place, which means the load's request whoever has the blocks by now."""
        groups: dict[int, list[int]] = {}
        for target in self.targets:
            groups.setdefault(target.group, []).append(target.position)
        return Failures(places={self.load.request: groups})


@dataclass(frozen=True, slots=True)
class Transfer:
    """An asynchronous load that is not over. `spoilt` are the targets that are to be garbage."""

    load: Load
    pending: tuple[int, ...]
    spoilt: tuple[Target, ...] = ()
    is_told: bool = True


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight: the wrong values that its requests have read, and what it has loaded."""

    step: Step
    taints: tuple[tuple[int, int, str], ...]
    loaded: tuple[tuple[Load, int | None], ...]


@dataclass(frozen=True, slots=True)
class Client:
    """What the client of a request knows: how many tokens it has, and which faults spoilt them."""

    number: int
    life: int
    num_tokens: int = 0
    spoilt: tuple[tuple[int, int], ...] = ()
    is_counted: bool = False
    finish: Finish | None = None
