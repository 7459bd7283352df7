"""Loads, and what ranks report on them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbraid.ids import BlockId
from kvbraid.loads.failures import Failures, Record


class Target(NamedTuple):
    """A block that a load fills: block `position` of the request's table in a group."""

    group: int
    position: int
    block_id: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Blocks that are to be filled from a tier.

    Every rank reports the end of each load in `LoadReport.ended`, whether or not it failed.

    Attributes:
        number: The load's number; loads are numbered in the order in which they are scheduled.
        request: The request that waits for it.
        start: How many tokens come before those that it loads: the hit.
        num_tokens: How many tokens it loads.
        is_async: The request computes nothing before all ranks have reported. A synchronous load
            ends before its own step computes, and is reported with the step's result.
        tier: The name of the tier.
        records: What the tier reads.
        targets: Only the blocks that the rule needs at the end of the load.
    """

    number: int
    request: int
    start: int
    num_tokens: int
    is_async: bool
    tier: str
    records: tuple[Record, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What one rank says about loads, whenever it likes, and as often as it likes.

    Attributes:
        rank: The rank, from 0.
        ended: Numbers of loads of which this rank writes no block any more, failed ones included.
        given_up: Numbers of loads that this rank has given up although it may still write: they
            count as failed whole, and their blocks are not used until the rank reports their end.
        failures: What failed, in any form.
    """

    rank: int
    ended: Collection[int] = ()
    given_up: Collection[int] = ()
    failures: Failures = field(default_factory=Failures)
