"""What loads failed, in every form in which connectors report it, as a union over ranks.

Nothing here looks into a table: which reported blocks count is decided by `assess`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from kvbraid.ids import BlockId


class Cause(StrEnum):
    """Why a load failed."""

    MISS = "miss"
    SHORT = "short"
    CORRUPT = "corrupt"
    TIMEOUT = "timeout"
    IO_ERROR = "io_error"

    @property
    def spoils_record(self) -> bool:
        """Whether the source's record is no good; otherwise the source is only backed off."""
        return self in {Cause.MISS, Cause.SHORT, Cause.CORRUPT}


class Record(NamedTuple):
    """What a load read: the tier's name and its key there. A foreign one belongs to others."""

    tier: str
    key: bytes
    is_foreign: bool = False


class GroupBlock(NamedTuple):
    """A block that failed as a block of one group."""

    group: int
    block_id: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What one report, or the reports of all ranks together, say.

    Attributes:
        places: Positions in the tables of requests, by group. The mapping of a request has any
            groups, or a sequence has one entry per group.
        group_blocks: Blocks with their groups.
        blocks: Blocks of the one pool that all groups share.
        requests: Requests of which every loaded block counts as failed.
        contents: What blocks hold, or held before they were handed out again, with their groups.
            No connector names these: ledgers do, of a load that they know.
        causes: What failed at the source.
    """

    places: Mapping[int, Mapping[int, Collection[int]]] = field(default_factory=dict)
    group_blocks: Collection[GroupBlock] = ()
    blocks: Collection[BlockId] = ()
    requests: Collection[int] = ()
    contents: Collection[GroupBlock] = ()
    causes: Mapping[Record, Cause] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything failed."""
        return bool(
            self.places or self.group_blocks or self.blocks or self.requests or self.contents
        )

    @classmethod
    def union(cls, reports: Iterable[Self]) -> Self:
        """Return what at least one of the ranks says. Ranks may disagree."""
        places: dict[int, dict[int, set[int]]] = {}
        pairs, blocks, requests = set[GroupBlock](), set[BlockId](), set[int]()
        contents = set[GroupBlock]()
        causes: dict[Record, Cause] = {}
        for report in reports:
            for request, groups in report.places.items():
                own = places.setdefault(request, {})
                for group, positions in groups.items():
                    own.setdefault(group, set()).update(positions)
            pairs.update(report.group_blocks)
            blocks.update(report.blocks)
            requests.update(report.requests)
            contents.update(report.contents)
            for record, cause in report.causes.items():
                known = causes.get(record)
                causes[record] = cause if known is None else _worse(known, cause)
        return cls(
            places=places,
            group_blocks=pairs,
            blocks=blocks,
            requests=requests,
            contents=contents,
            causes=causes,
        )


def _worse(a: Cause, b: Cause) -> Cause:
    """Of two causes, the one that spoils the record; of equals, the first in the alphabet."""
    return min(a, b, key=lambda cause: (not cause.spoils_record, cause.value))
