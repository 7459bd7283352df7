"""What lock-step asks of a cache: the operations, their arguments, and the state it compares.

A `Side` is one cache with this interface: the engine's own manager (`theirs.py`) or ours
(`ours.py`). Requests are named by the driver's keys. A side decides nothing about scheduling, and
only its own cache says which blocks a request gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request as a client sends it; all of its tokens are prompt."""

    key: int
    tokens: tuple[int, ...]
    extra: ExtraKeys = NO_EXTRA_KEYS
    lora_id: int | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Slots for one request in one step; `num_computed_tokens` is before it, without hits.

    `num_hit_tokens` may leave out the end of a hit that lies inside a block: a load brings more.
    """

    key: int
    num_new_tokens: int
    num_computed_tokens: int
    num_hit_tokens: int = 0
    junction: int | None = None
    num_external_tokens: int = 0
    num_lookahead_tokens: int = 0
    num_in_flight_tokens: int = 0
    delay_commit: bool = False
    loading_groups: tuple[int, ...] = ()
    full_sequence_must_fit: bool = False
    is_waiting: bool = False


class Hit(NamedTuple):
    """A prefix hit and the shared prefix that some group does not hold yet (0: none)."""

    num_tokens: int
    junction: int


Blocks = list[list[int]]
"""Block ids per group."""


class Side(Protocol):
    """One cache. Every method but the last four is an operation of the log."""

    def add(self, request: NewRequest) -> None:
        """Make a request known."""

    def extend(self, key: int, tokens: Sequence[int]) -> None:
        """Append sampled tokens."""

    def start_step(self) -> None:
        """Begin a scheduling step."""

    def match(self, key: int) -> Hit:
        """Look the longest prefix up; `allocate` in the same step may adopt it."""

    def allocate(self, asks: Sequence[Ask], reserved_blocks: int) -> list[Blocks]:
        """Return the new blocks of the requests before the first that does not fit."""

    def decode(self, keys: Sequence[int], tokens: Sequence[int]) -> list[Blocks]:
        """Append a token to each request, then allocate one slot each as `allocate` does."""

    def commit(self, key: int, num_tokens: int) -> None:
        """Make the blocks of the first tokens findable."""

    def free_skipped(self, key: int, num_processed_tokens: int) -> None:
        """Free what no later token needs."""

    def release(self, keys: Sequence[int]) -> None:
        """Free the blocks of finished requests and forget them."""

    def preempt(self, key: int) -> None:
        """Free the blocks of a request that will start again."""

    def pop_blocks(self, key: int) -> list[int]:
        """Forget a finished request; its blocks stay referenced until `free_blocks`."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each, the first to be evicted first."""

    def zero_again(self, key: int, start_token: int) -> None:
        """A load failed: the request's blocks from there on must be zeroed after all."""

    def roll_back(self, key: int, num_computed_tokens: int) -> None:
        """Draft tokens were rejected, or a loaded last token is computed again."""

    def forget(self, block_ids: Sequence[int]) -> None:
        """Drop the hashes of blocks, in the order of a set of their ids."""

    def reset(self) -> bool:
        """Forget every hash, unless blocks are in use."""

    def take_work(self, caller_frees: bool) -> tuple[list[tuple[int, int]], list[int]]:
        """Drain the copies (source, destination), and the new blocks that must be zeroed.

        The ends of the copies are held until `free_blocks`, or else until the next step starts.
        """

    def take_events(self) -> bytes:
        """Drain the events as one encoded batch of time 0 and rank 0."""

    def num_free_blocks(self) -> int:
        """Blocks that nothing refers to."""

    def free_queue(self) -> list[int]:
        """Return the free blocks, next victim first."""

    def tables(self, keys: Sequence[int]) -> list[Blocks]:
        """Return the block table per group of each request."""

    def resident(self) -> dict[tuple[int, bytes], list[int]]:
        """Return the copies of every (group, hash), oldest first."""
