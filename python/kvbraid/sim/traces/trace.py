"""What a trace is: requests in the order in which an engine sees them, each prompt as block ids.

Invariant: an id stands for a block of the trace *and the whole prefix that it ends*, so two
prompts share exactly the ids of their common beginning. A trace has no tokens; it says only which
prefixes are equal. Outputs show only in the prompts of later turns. The tokens after a prompt's
last whole block are unknown: a later turn repeats them inside a block with another id.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from kvbraid.errors import TraceError


class TraceRequest(NamedTuple):
    """One prompt: the conversation it continues, its length, and the ids of its whole blocks."""

    conversation: int
    num_tokens: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trace, which can be played any number of times.

    Attributes:
        name: The file's, without suffixes.
        block_tokens: Tokens that one id stands for.
        num_requests: How many requests a play yields.
        play: Yields the requests in order.
        notes: What was changed or left out while reading, by name.
    """

    name: str
    block_tokens: int
    num_requests: int
    play: Callable[[], Iterable[TraceRequest]]
    notes: Mapping[str, int] = field(default_factory=dict)

    def first(self, num_requests: int) -> "Trace":
        """Return a trace of the first `num_requests` requests, or of all if there are fewer."""
        return Trace(
            name=self.name,
            block_tokens=self.block_tokens,
            num_requests=min(num_requests, self.num_requests),
            play=lambda: islice(self.play(), num_requests),
            notes=self.notes,
        )


def check_chained(rows: Iterable[tuple[int, Sequence[int]]], where: str) -> None:
    """Refuse ids that stand only for a block's content: such an id follows different prefixes.

    Each of `rows` has a line number and the ids of one prompt.

    Raises:
        TraceError: The message names the line and the id.
    """
    before: dict[int, int | None] = {}
    for number, ids in rows:
        for previous, current in _pairs(ids):
            if before.setdefault(current, previous) != previous:
                raise TraceError(
                    f"{where}: line {number}: id {current} follows {_shown(previous)} here and "
                    f"{_shown(before[current])} before; expected ids of whole prefixes, so chain "
                    "each with the id before it"
                )


def _pairs(ids: Sequence[int]) -> Iterator[tuple[int | None, int]]:
    previous: int | None = None
    for current in ids:
        yield previous, current
        previous = current


def _shown(previous: int | None) -> str:
    return "nothing" if previous is None else f"id {previous}"
