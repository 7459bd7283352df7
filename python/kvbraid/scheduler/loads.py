"""Where blocks can be loaded from: what a scheduler asks of the tiers, and what they answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvbraid.hashing import ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.recovery.failures import Record
from kvbraid.recovery.tiers import Tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a starting request asks the tiers for.

    Attributes:
        request: The request.
        tokens: All of its tokens.
        extra: What keeps its blocks apart from those of other requests with the same tokens.
        num_hit_tokens: What it has here: a load begins there, at a boundary of all groups.
        refused: Tiers that must not be used.
    """

    request: int
    tokens: Sequence[int]
    extra: ExtraKeys
    num_hit_tokens: int
    refused: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a tier can load.

    Attributes:
        num_tokens: Tokens after the hit. They end at a boundary of all groups or, if the load is
            asynchronous, with the request's last token.
        tier: The tier's name.
        is_async: The request waits while others are computed. A synchronous load ends before its
            own step computes.
        records: What is read, for the report of a failure.
    """

    num_tokens: int
    tier: str
    is_async: bool
    records: tuple[Record, ...] = ()


class LoadTiers(Tiers, Protocol):
    """The tiers of one engine, as its scheduler sees them."""

    def lookup(self, query: Query) -> Offer | None:
        """Return what can be loaded for a starting request; None for nothing.

        The answer is taken or not: `Step.loads` tells. It changes nothing, and may be asked again.
        """
        ...


class NoTiers:
    """An engine that loads nothing."""

    def lookup(self, query: Query) -> None:
        """Nothing can be loaded."""

    def forget_blocks(self, block_ids: Collection[BlockId]) -> None:
        """Nothing is stored."""

    def drop(self, record: Record) -> None:
        """Nothing is recorded."""

    def back_off(self, record: Record) -> None:
        """Nothing is asked."""


NO_TIERS: Final = NoTiers()
