"""The search itself, on worlds that are numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.ghost.world.search import Bad, Move, Search


@dataclass(frozen=True)
class Number:
    """A world that counts to `end`, and is bad at `bad`; it sticks at `stuck`."""

    at: int
    end: int
    bad: int = -9
    stuck: int = -9

    def key(self) -> bytes:
        return self.at.to_bytes(2)

    def is_end(self) -> bool:
        return self.at == self.end

    def moves(self) -> Iterator[Move["Number"]]:
        for name, after in (("one", self.at + 1), ("two", self.at + 2), ("back", self.at - 1)):
            if self.at == self.stuck and name != "back":
                continue
            if after == self.bad:
                yield Move(name, True, f"{after} is bad")
            elif 0 <= after <= self.end:
                is_calm = name != "back"
                yield Move(name, is_calm, Number(after, self.end, self.bad, self.stuck))


def test_every_state_is_visited_once() -> None:
    found = Search(Number(0, 100), max_states=1_000).run()

    assert (found.states, found.bad, found.is_complete) == (101, [], True)
    assert found.moves == 100 + 99 + 100


def test_the_shortest_path_to_a_bad_state_is_told() -> None:
    found = Search(Number(0, 100, bad=5), max_states=1_000, max_bad=1).run()

    assert found.bad == [Bad("5 is bad", ("one", "two", "two"))]


def test_a_state_from_which_only_trouble_leads_on_is_a_dead_end() -> None:
    found = Search(Number(0, 10, stuck=9), max_states=1_000).run()

    assert [sum(1 if name == "one" else 2 for name in bad.path) for bad in found.bad] == [9]


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_a_search_that_is_cut_short_says_so_and_calls_nothing_a_dead_end(limit: int) -> None:
    found = Search(Number(0, 100), max_states=limit).run()

    assert not found.is_complete
    assert found.states >= limit
    assert not found.bad
