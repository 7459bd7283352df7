"""What became of the blocks of a tier since it was opened, for metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """Counts since the start, and what is going on now.

    Attributes:
        blocks: Blocks answered, by kind of job and status; all pairs are there.
        bytes: Payload bytes moved, by kind of job.
        seconds: Time spent in calls of the tier and in verification, by kind of job.
        refused_by_queue: Blocks answered `FULL` because too much waited.
        refused_by_pause: Stores answered without a try, because the tier was full or failed.
        refused_while_off: Blocks answered `TIMEOUT` without a try, because too many calls hung.
        late: Calls that ended after their deadline.
        num_bad: Records that were dropped because they were short or corrupt.
        num_foreign: Records of others that a load found under its key; they stay.
        errors: Exceptions of the tier.
        last_error: What the last of them said.
        queued_blocks: Blocks that wait.
        queued_bytes: Their bytes.
        hung_threads: Calls that run past their deadlines.
        is_off: Nothing is tried because of these.
        is_paused: No store is tried for a while.
    """

    blocks: Mapping[Kind, Mapping[Status, int]]
    bytes: Mapping[Kind, int]
    seconds: Mapping[Kind, float]
    refused_by_queue: int
    refused_by_pause: int
    refused_while_off: int
    late: int
    num_bad: int
    num_foreign: int
    errors: int
    last_error: str
    queued_blocks: int
    queued_bytes: int
    hung_threads: int
    is_off: bool
    is_paused: bool
