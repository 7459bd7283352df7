"""What failures mean for runs, before any policy: what is tainted, and where each run resumes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvbraid.cache.tables import Refusal
from kvbraid.ids import BlockId


class Ignored(StrEnum):
    """Why a part of a report does not count."""

    NULL_BLOCK = "null_block"
    UNKNOWN_REQUEST = "unknown_request"
    """The request is not known, or has ended."""
    OUT_OF_RANGE = "out_of_range"
    """The request has no such group or position, or the pool no such block."""
    NOT_LOADED = "not_loaded"
    """No load of any run fills the block: it is no longer owned, or has been recovered already."""


class Verdict(NamedTuple):
    """What happens to one run.

    Attributes:
        request: The request.
        first_tainted: The first token that was computed from tainted blocks, in a step that has
            ended or is in flight; None if no step has read any.
        handed_out: A token that was sampled from a tainted one has been handed out, by this run or
            by an earlier one of its request.
        resume: The largest boundary that every group accepts without the tainted blocks, except
            those that it waits for.
        in_place: It can go back without giving its blocks up: nothing tainted was handed out, it
            has no states, no window needs a block that is gone, no tainted block stays before the
            boundary except those that it waits for, and it would write into no block that a
            transfer may still write or that another request rewrites.
        owner_of: Tainted blocks that it shares with other runs and that it alone writes again.
        waits_for: Tainted blocks that it reads at `resume`, each with the request that owns it.
        busy: Blocks of its tables that a transfer may still write.
        refused: Larger boundaries that a group refuses, as far as they were asked for.
    """

    request: int
    first_tainted: int | None
    handed_out: bool
    resume: int
    in_place: bool
    owner_of: tuple[BlockId, ...]
    waits_for: Mapping[BlockId, int]
    busy: tuple[BlockId, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The answer for all runs.

    Attributes:
        tainted: The blocks with garbage, in ascending order: what failed, and what was computed
            from it. They may be in no table any more.
        lost: Former contents that were garbage, by their numbers in the runs.
        told: Requests that were handed out a token computed from garbage by a run that has ended.
        verdicts: One per affected run that has not ended, ordered by request.
        ignored: What did not count, by reason. Every failed block, place or request counts once.
    """

    tainted: tuple[BlockId, ...]
    verdicts: tuple[Verdict, ...]
    ignored: Mapping[Ignored, int]
    lost: tuple[BlockId, ...] = ()
    told: tuple[int, ...] = ()
