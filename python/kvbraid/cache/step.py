"""What requests ask for in a step, and what they get."""

from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.ids import BlockId


class Match(NamedTuple):
    """How much a request can reuse, in tokens.

    `junction` is the boundary at which the groups that are looked up first could resume, if it is
    further than `num_tokens`; otherwise it is 0. Requests branch off there, so its state is worth
    keeping (vLLM's shared-prefix boundary).
    """

    num_tokens: int
    junction: int


NO_MATCH: Final = Match(0, 0)


class BlockInfo(NamedTuple):
    """One block: its references, and the group and hash that find it first.

    `num_tokens` is how many tokens that hash covers; 0 for a block that no hash finds. `author` is
    the request that registered it (modulo 2**32 - 1); None if it was registered by hand.
    """

    num_references: int
    group: int | None
    block_hash: bytes | None
    num_tokens: int
    author: int | None = None


class Checkpoint(NamedTuple):
    """A boundary that is kept resumable: hash and tokens of its prefix, and its value now.

    The value is in compute per block, above the value of the last evicted checkpoint. `is_last`:
    no kept checkpoint follows this one, so the blocks that lead only to it are evicted with it.
    """

    block_hash: bytes
    num_tokens: int
    value: float
    is_last: bool


class Cursor(NamedTuple):
    """The progress of a request's table in one group; for tests.

    `num_registered` counts the leading blocks that need no registering; None until the table has
    adopted or registered blocks. `last_state` is the position of the state that the previous step
    wrote.
    """

    num_registered: int | None
    last_state: int | None


class KeptState(NamedTuple):
    """A state, after `num_tokens` tokens of a request, from which other requests can resume.

    `block_id` is the block that holds the state, or that will hold it once the copies of the step
    are made. A block table does not show this, because states move.
    """

    request: int
    group: int
    block_id: BlockId
    num_tokens: int


class Labels(NamedTuple):
    """What no hash covers of a request: the engine's number of its adapter and its session, which
    only events show, and whether a later request goes on from its end."""

    lora_id: int | None = None
    session_id: str | None = None
    will_return: float | None = None


class Work(NamedTuple):
    """The work of the device before a step runs, and the states to store after the step.

    Attributes:
        copies: Blocks to copy, as (source, destination), in this order, after the zeroing: what is
            copied into may be new.
        blocks_to_zero: New blocks of groups with `needs_zeroing`, except those that a load fills
            (`Need.loading_groups`), and what `record_blocks_for_zeroing` listed.
        kept_states: States that became findable in this step and that a connector may store.
            States of requests that have ended since are left out.
    """

    copies: list[tuple[BlockId, BlockId]]
    blocks_to_zero: list[BlockId]
    kept_states: list[KeptState]


@dataclass(slots=True, kw_only=True)
class Need:
    """What one request asks for in one step; in tokens.

    Attributes:
        request: The number that `CacheManager.add` returned.
        num_new_tokens: Tokens to compute, drafts included: those after the request's last token
            are drafts. They get blocks and count as computed until `roll_back`, and are not
            registered. The first token of a step is none, even if it is not sampled yet.
        match: What `CacheManager.match` returned: a starting request reuses its tokens, and
            remembers its junction. None for a running request.
        num_hit_tokens: Instead of `match`, if less is reused: the tokens.
        junction: Instead of `match`: the junction; None keeps the remembered one.
        num_external_tokens: Tokens after the hit that were computed elsewhere.
        num_lookahead_tokens: Draft tokens that need slots too.
        num_in_flight_tokens: Tokens that are scheduled but not processed; the blocks that they
            read stay.
        num_encoder_tokens: Encoder tokens, for cross attention.
        num_computed_tokens: Tokens computed before this step, without the hit. None: the number
            that the manager tracked.
        delay_commit: Register no block yet, because a load is under way; `commit` does it later.
        loading_groups: Groups whose blocks for the external tokens are filled by a load after this
            step. They are not listed for zeroing, which could wipe what was loaded.
        full_sequence_must_fit: Allocate only if the whole request would fit.
        is_waiting: The watermark applies.
    """

    request: int
    num_new_tokens: int
    match: Match | None = None
    num_hit_tokens: int = 0
    junction: int | None = None
    num_external_tokens: int = 0
    num_lookahead_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_encoder_tokens: int = 0
    num_computed_tokens: int | None = None
    delay_commit: bool = False
    loading_groups: tuple[int, ...] = ()
    full_sequence_must_fit: bool = False
    is_waiting: bool = False


class NoFit(StrEnum):
    """Why a request got nothing, and so what helps."""

    MEMORY = "memory"
    """Too few blocks are free: preempt another request, or wait until one ends."""

    WATERMARK = "watermark"
    """Only the blocks of the watermark are left, for requests that run already: wait."""

    RESERVED = "reserved"
    """Only `reserved_blocks` are left: wait, or reserve fewer."""

    FULL_SEQUENCE = "full_sequence"
    """The step would fit, but `full_sequence_must_fit` and the whole request does not."""

    UNWRITTEN = "unwritten"
    """This step still writes the state, or the block, in which the hit ends: ask again in the next
    step. Preempting somebody does not help."""

    HIT_EVICTED = "hit_evicted"
    """An earlier request of the same call has evicted the hit: match again."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """New blocks of a step, in flat buffers of 32-bit integers.

    Blocks are ordered by request, then by group: `counts[i * num_groups + g]` is the number of
    blocks of request i in group g. Null blocks (0) stand where a state group skips positions.

    `num_fit` requests fit, in the given order. `reason` says why the next one did not; None if all
    of them fit.
    """

    num_fit: int
    block_ids: "array[int]"
    counts: "array[int]"
    num_groups: int
    reason: NoFit | None = None

    def new_blocks(self, i: int) -> list[list[BlockId]]:
        """Return the new blocks of request i, group by group.

        Raises:
            InvalidValueError: Request i did not fit, or was not in the call.
        """
        if not 0 <= i < self.num_fit:
            what = f"request {shortened(i)} of the call has no new blocks: {self.num_fit} fitted"
            raise InvalidValueError(f"{what}; expected an index below that")
        start = sum(self.counts[: i * self.num_groups])
        blocks = []
        for count in self.counts[i * self.num_groups : (i + 1) * self.num_groups]:
            blocks.append([BlockId(b) for b in self.block_ids[start : start + count]])
            start += count
        return blocks
