"""Visits every state that can be reached from one: which are bad, and which are dead ends.

A state is known again by its key. States are visited in the order in which they are found, so the
path to a bad one is the shortest. A calm move is one in which nothing goes wrong: from every
state, calm moves alone have to lead to an end.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class State(Protocol):
    """A state of the world."""

    def key(self) -> bytes:
        """Equal for two states if and only if the same can happen from both."""
        ...

    def is_end(self) -> bool:
        """Whether all is done."""
        ...

    def moves(self) -> Iterator["Move[Self]"]:
        """All that can happen next. A state is moved from once."""
        ...


S = TypeVar("S", bound=State)


class Move(NamedTuple, Generic[S]):
    """Something that happens, and what comes of it: a state, or the problem."""

    name: str
    is_calm: bool
    outcome: S | str


class Bad(NamedTuple):
    """A problem, and the moves that lead to it."""

    problem: str
    path: tuple[str, ...]


@dataclass
class Found:
    """What came of one search."""

    states: int = 0
    moves: int = 0
    is_complete: bool = True
    bad: list[Bad] = field(default_factory=list)


class Search(Generic[S]):
    """One search.

    It ends early at `max_states` states, with `max_bad` problems, or once `is_late` says so.
    """

    def __init__(
        self,
        start: S,
        *,
        max_states: int,
        max_bad: int = 3,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.max_states = max_states
        self.max_bad = max_bad
        self.is_late = is_late
        self._numbers: dict[bytes, int] = {}
        self._parents: array[int] = array("l")
        self._names: list[str] = []
        self._calm: array[int] = array("l")
        self._ends: list[int] = []
        self._found = Found()
        self._waiting: deque[tuple[int, S]] = deque()
        self._reach(start, -1, "start")

    def run(self) -> Found:
        """Visit all states."""
        found = self._found
        while self._waiting and not self._is_to_end():
            number, state = self._waiting.popleft()
            if state.is_end():
                self._ends.append(number)
            for move in state.moves():
                found.moves += 1
                self._note(number, move)
        found.is_complete = not self._waiting
        if len(found.bad) < self.max_bad:
            self._look_for_dead_ends()
        return found

    def _is_to_end(self) -> bool:
        is_full = self._found.states >= self.max_states
        return is_full or len(self._found.bad) >= self.max_bad or self.is_late()

    def _note(self, number: int, move: Move[S]) -> None:
        if isinstance(move.outcome, str):
            self._found.bad.append(Bad(move.outcome, (*self.path(number), move.name)))
            return
        after = self._reach(move.outcome, number, move.name)
        if move.is_calm:
            self._calm.extend((number, after))

    def _reach(self, state: S, parent: int, name: str) -> int:
        key = state.key()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._found.states
            self._found.states += 1
            self._parents.append(parent)
            self._names.append(name)
            self._waiting.append((number, state))
        return number

    def path(self, number: int) -> tuple[str, ...]:
        """The moves that led to a state first."""
        names = []
        while number > 0:
            names.append(self._names[number])
            number = self._parents[number]
        return tuple(reversed(names))

    def _look_for_dead_ends(self) -> None:
        """What was not visited may lead to an end."""
        before: dict[int, list[int]] = {}
        for at in range(0, len(self._calm), 2):
            before.setdefault(self._calm[at + 1], []).append(self._calm[at])
        alive = set(self._ends).union(number for number, _ in self._waiting)
        todo = list(alive)
        while todo:
            fresh = set(before.get(todo.pop(), ())) - alive
            alive |= fresh
            todo += fresh
        dead = (number for number in range(self._found.states) if number not in alive)
        first = next(dead, None)
        if first is not None:
            others = sum(1 for _ in dead)
            problem = f"no calm moves lead to an end from here, nor from {others} other states"
            self._found.bad.append(Bad(problem, self.path(first)))
