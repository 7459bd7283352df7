"""What an engine does to a cache when loads failed: `recover` does all of it in one step.

Invariant: what a load left unwritten is neither read nor found. A recovery is checked as a whole,
then its parts are applied as if by the single calls, in the order of the fields of `Recovery`.
No part may undo another:

- A commit makes no block findable that is forgotten, and does not reach beyond a rewind of its
  request.
- A request is not rewound to tokens that it would write into a block that is held.
- A block is held only if somebody besides the caller refers to it, before requests give it back.
- No block is listed for zeroing that a commit may make findable.
- A preempted request is neither rewound nor zeroed. What arrived for it may be committed.

If anything is refused, nothing has changed. Nothing here decides what is bad, or how far to go
back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvbraid.cache.counts import check_counts, check_requests
from kvbraid.ids import BlockId
from kvbraid.reading import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What to do, in the order in which it is done. The mappings go from requests to tokens.

    Attributes:
        forget: Failed copies: these blocks lose their hashes.
        commit: How many tokens have arrived: their blocks become findable.
        rewind: To how many tokens requests go back in place.
        hold: Blocks that a transfer may still write: the caller gets a reference to each, which it
            drops with `pool.free` when the transfer has ended. The null block is passed over.
        preempt: Requests that give all blocks back and start over with `match`.
        zero: From which token on the blocks of requests are listed for zeroing.

    Raises:
        InvalidValueError: A block or a number of tokens is no unsigned integer of 32 bits, or a
            request is no number; the message names the value.
    """

    forget: Sequence[BlockId] = ()
    commit: Mapping[int, int] = field(default_factory=dict)
    rewind: Mapping[int, int] = field(default_factory=dict)
    hold: Sequence[BlockId] = ()
    preempt: Sequence[int] = ()
    zero: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for blocks in (self.forget, self.hold):
            check_counts("block_id", blocks)
        check_fields(self, dict.fromkeys(("commit", "rewind", "zero"), Mapping))
        check_requests("Recovery.preempt", self.preempt)
        for name in ("commit", "rewind", "zero"):
            part = getattr(self, name)
            check_requests(f"Recovery.{name}", part)
            check_counts("num_tokens", part.values())
