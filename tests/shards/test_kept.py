"""What a front keeps of shards' rosters: read once, and within a limit whatever they say."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from kvbraid.ids import PodId
from kvbraid.service.shards.kept import Kept
from kvbraid.service.shards.merging import Asked, _plan, _plan_bytes
from kvbraid.service.shards.messages import (
    _read_roster,
    _read_states,
    read_roster,
    read_states,
    roster_bytes,
)


def test_what_was_asked_for_last_is_kept_within_the_limit() -> None:
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    kept = Kept(make, lambda key, _: key, limit_bytes=10)
    assert [kept(key) for key in (4, 5, 4, 1)] == [4, 5, 4, 1]
    assert (made, kept.num_bytes) == ([4, 5, 1], 10)
    kept(2)  # In place of 5, which was asked for before 4.
    kept(11)  # It alone is more than all may be.
    kept.check_integrity()
    assert (kept(4), kept(5), kept.num_bytes) == (4, 5, 9)
    assert made == [4, 5, 1, 2, 11, 5]
    kept.check_integrity()


def test_what_cannot_be_read_is_not_kept() -> None:
    before = read_roster.num_bytes
    for told in (b"", msgspec.msgpack.encode([["a", 0], ["a", 0]])):
        with pytest.raises((msgspec.MsgspecError, msgspec.ValidationError)):
            read_roster(told)
    assert read_roster.num_bytes == before
    read_roster.check_integrity()
    read_states.check_integrity()


def taken(make: Any, *given: Any) -> tuple[Any, int]:  # noqa: ANN401 - of any kind.
    """What is made, and how many bytes are taken while it is there."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made = make(*given)
    num_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return made, num_bytes


@pytest.mark.parametrize("ends", ["", "x" * 120, "x" * 110 + "\N{GRINNING FACE}"])
@pytest.mark.parametrize("rank", [0, 1 << 31])
@pytest.mark.parametrize("num", [1, 1000])
def test_the_bytes_that_are_accounted_are_taken_at_most(ends: str, rank: int, num: int) -> None:
    names = [f"{number}{ends}" for number in range(num)]
    told = msgspec.msgpack.encode([(name, rank) for name in names])
    roster, num_bytes = taken(_read_roster, told)
    assert num_bytes + len(told) <= roster_bytes(told, len(roster.ranks))
    asked = Asked({1: dict.fromkeys(map(PodId, names), 1)})
    key = (asked, ((1, told), (2, b"\x90")))
    plan, num_bytes = taken(_plan, key)
    assert len(plan.ranks) == (2 * num if rank else num)
    assert num_bytes + 2 * len(told) <= _plan_bytes(key, plan)
    _, num_bytes = taken(_read_states, bytes(num))
    assert num_bytes + num <= read_states._cost(bytes(num), _read_states(bytes(num)))
