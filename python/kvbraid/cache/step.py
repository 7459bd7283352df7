"""What requests ask of a step, and what they get."""

from array import array
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.ids import BlockId


class Match(NamedTuple):
    """How much a request can reuse, in tokens.

    `junction`: where the groups that are asked first could resume, if that is further, else 0:
    others branch off there, so that it is worth keeping (vLLM's shared-prefix boundary).
    """

    num_tokens: int
    junction: int


NO_MATCH: Final = Match(0, 0)


class BlockInfo(NamedTuple):
    """What is known of a block: references, and the group and hash it is found by first.

    `num_tokens` is how many tokens that hash covers; 0 for a block that nobody can find.
    """

    num_references: int
    group: int | None
    block_hash: bytes | None
    num_tokens: int


class Checkpoint(NamedTuple):
    """A boundary that is kept resumable: hash and tokens of its prefix, and its value now.

    The value is in compute per block, above that of what was let go last; `is_last`: nothing that
    is kept leads on from it, so that the blocks which lead to it go with it.
    """

    block_hash: bytes
    num_tokens: int
    value: float
    is_last: bool


class Cursor(NamedTuple):
    """How far a request's table in one group is; for tests.

    `num_registered`: leading blocks that need no registering, None until the first ones do not.
    `last_state`: position of the state that the step before wrote.
    """

    num_registered: int | None
    last_state: int | None


class KeptState(NamedTuple):
    """A state that others can resume from, after `num_tokens` tokens of a request.

    `block_id` is where it is, or will be once the copies of the step are made: a table does not
    tell, because states move.
    """

    request: int
    group: int
    block_id: BlockId
    num_tokens: int


class Labels(NamedTuple):
    """What events alone show of a request: the engine's number of its adapter, and its session."""

    lora_id: int | None = None
    session_id: str | None = None


class Work(NamedTuple):
    """What the device has to do before a step runs, and what a connector may store after it.

    Attributes:
        copies: Blocks to copy, as (source, destination), in this order.
        blocks_to_zero: New blocks of groups with `needs_zeroing`.
        kept_states: States that became findable in this step, but for those of requests that
            ended in the meantime.
    """

    copies: list[tuple[BlockId, BlockId]]
    blocks_to_zero: list[BlockId]
    kept_states: list[KeptState]


@dataclass(slots=True, kw_only=True)
class Need:
    """What one request asks of one step; in tokens.

    Attributes:
        request: As `CacheManager.add` returned it.
        num_new_tokens: To be computed.
        num_hit_tokens: Reused by a request that starts now; 0 for one that runs.
        junction: From the match, to be remembered; None leaves it as it is.
        num_external_tokens: Computed elsewhere, after the hit.
        num_lookahead_tokens: Draft tokens that need slots too.
        num_in_flight_tokens: Scheduled but not processed: what they read stays.
        num_encoder_tokens: For cross attention.
        num_computed_tokens: Before this step, hit excluded. None: as the manager tracked it.
        delay_commit: Register nothing yet, because a load is under way; `commit` does it later.
        full_sequence_must_fit: Allocate only if all of the request would fit.
        is_waiting: The watermark applies.
    """

    request: int
    num_new_tokens: int
    num_hit_tokens: int = 0
    junction: int | None = None
    num_external_tokens: int = 0
    num_lookahead_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_encoder_tokens: int = 0
    num_computed_tokens: int | None = None
    delay_commit: bool = False
    full_sequence_must_fit: bool = False
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """New blocks of a step, in flat buffers of 32-bit integers.

    Those of request i and group g come after those of group g - 1; `counts[i * num_groups + g]`
    says how many they are. Null blocks (0) stand where a state group skips positions.
    """

    num_fit: int
    block_ids: "array[int]"
    counts: "array[int]"
    num_groups: int

    def new_blocks(self, i: int) -> list[list[BlockId]]:
        """Return the new blocks of request i, group by group."""
        start = sum(self.counts[: i * self.num_groups])
        blocks = []
        for count in self.counts[i * self.num_groups : (i + 1) * self.num_groups]:
            blocks.append([BlockId(b) for b in self.block_ids[start : start + count]])
            start += count
        return blocks
