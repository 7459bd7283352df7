"""A copy of a cache behaves as its original does, and neither notices what happens to the other.

A cache is copied again and again in the middle of a random life, and the life goes on in both:
every call returns the same. Then one of the two is wrecked, and the other is still equal to the
model. The native side is `CacheCore.copy`.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from kvbraid.cache import CacheManager
from kvbraid.errors import KvbraidError

from tests.differential.machines import ByValueMachine, CacheMachine
from tests.unit.cache.caches import config, full


class Both:
    """Two objects that get the same calls and have to give the same answers."""

    def __init__(self, *sides: Any) -> None:  # noqa: ANN401 - caches, and their parts
        self.sides = sides

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever they have
        one, other = (getattr(side, name) for side in self.sides)
        if name in ("pool", "tiers", "debug", "_core"):
            return Both(one, other)
        if callable(one):
            return lambda *args, **more: alike(one, other, *args, **more)
        assert one == other
        return one


def alike(one: Callable[..., Any], other: Callable[..., Any], *args: Any, **more: Any) -> Any:  # noqa: ANN401
    """Return what both calls return, or raise what both raise."""
    try:
        answer = one(*args, **more)
    except KvbraidError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            other(*args, **more)
        raise
    assert other(*args, **more) == answer
    return answer


class BranchingMachine(CacheMachine):
    """What `CacheMachine` does, mostly to a cache and to a copy of it."""

    @rule(keeps_copy=st.booleans())
    def branch(self, *, keeps_copy: bool) -> None:
        """The one that is not kept loses all that it has; the other one is copied."""
        if isinstance(self.native, Both):
            sides = self.native.sides
            self.wreck(sides[not keeps_copy])
            self.native = sides[keeps_copy]
            self.everything_is_equal()
        self.native = Both(self.native, self.native.copy())  # type: ignore[assignment]

    def wreck(self, cache: CacheManager) -> None:
        cache.release([twin.native for twin in self.twins])
        cache.pool.free(self.held)
        cache.start_step()
        cache.pool.take(cache.pool.num_free)
        cache.add([1, 2, 3])
        cache.take_events()
        cache.take_statistics()


class BranchingByValueMachine(BranchingMachine, ByValueMachine):
    """The checkpoints too."""


TestBranches = BranchingMachine.TestCase
TestBranches.settings = settings(max_examples=50, stateful_step_count=20)
TestBranchesByValue = BranchingByValueMachine.TestCase
TestBranchesByValue.settings = settings(max_examples=30, stateful_step_count=20)


def test_a_class_of_ones_own_is_copied_as_such() -> None:
    class Own(CacheManager):
        """Somebody's."""

    assert type(Own(config(full(4))).copy()) is Own
