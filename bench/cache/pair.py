"""The caches that a row compares: ours and the rival, which is imported when a side is set up."""

from collections.abc import Callable
from typing import Any, TypeAlias

from bench.cache.ours import Ours
from bench.cache.side import AnyCache, Factory, Groups

Work: TypeAlias = Callable[[Factory], object]
"""Does a row's work once on an empty cache; returns the result on which both sides must agree."""


def rival(groups: Groups, num_blocks: int, **options: Any) -> AnyCache:  # noqa: ANN401 - passed on.
    """Make the rival's cache."""
    from bench.cache.rival import Rival

    return Rival(groups, num_blocks, **options)


def drop_in(groups: Groups, num_blocks: int, **options: Any) -> AnyCache:  # noqa: ANN401 - passed on.
    """Make our cache with the interface of the rival's manager."""
    from bench.cache.rival import DropIn

    return DropIn(groups, num_blocks, **options)


def agree(work: Work, new: Factory = Ours) -> Callable[[], None]:
    """Return a check that ours, which `new` makes, and the rival do the same work."""

    def check() -> None:
        ours, theirs = work(new), work(rival)
        assert ours == theirs, f"ours {ours!r:.200}, the rival's {theirs!r:.200}"

    return check
