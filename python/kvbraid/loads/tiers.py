"""What an engine asks of the tiers from which blocks are loaded, and to which they are stored."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from kvbraid.hashing import ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads.failures import Failures, Record


class Tiers(Protocol):
    """What recovery asks of the tiers. No call may wait or raise: what it starts is reported."""

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        """Make sure that nothing copied from these blocks is ever loaded.

        A pending store of one of them is cancelled; a store that has been announced is retracted,
        its record dropped. A block may have been stored by any of its hashes; those that still
        find it have not been forgotten yet. It may be asked for more blocks before any of them is.

        Returns what loads that have ended had filled with copies of these blocks: it is garbage as
        well. It is returned once.
        """
        ...

    def drop(self, record: Record) -> None:
        """Drop a record that is missing, short or corrupt; forget that it was ever looked up."""
        ...

    def back_off(self, record: Record) -> None:
        """Do not ask the record's tier for a while; the record stays."""
        ...


class Query(NamedTuple):
    """What a starting request asks the tiers for.

    Attributes:
        request: The request.
        tokens: All of its tokens.
        extra: What keeps its blocks apart from those of other requests with the same tokens.
        num_hit_tokens: What it has here: a load begins there, at a boundary of all groups.
        refused: Tiers in cooldown, which must not be used.
    """

    request: int
    tokens: Sequence[int]
    extra: ExtraKeys
    num_hit_tokens: int
    refused: Collection[str]


class Offer(NamedTuple):
    """What a tier can load.

    The last token of a request is always computed, over what was loaded. A load of all tokens may
    lack what it reads: the oldest block of its window, or the state before it. Then less is
    loaded (`useful_end` of `kvbraid.recovery.ledger.loading`). A tier that may lack what is
    read from there offers less than all.

    Attributes:
        num_tokens: Tokens after the hit. They end at a boundary of all groups or, if the load is
            asynchronous, with the request's last token or with the one before it, unless that
            is inside a block of which the last token reads nothing.
        tier: The tier's name.
        is_async: The request waits while others are computed. A synchronous load ends before its
            own step computes.
        records: What is read, for the report of a failure.
        state_ends: After how many tokens of the request the tier has the states of a model with
            states; None: at each boundary of all groups. Only an offer of all tokens is cut.
    """

    num_tokens: int
    tier: str
    is_async: bool
    records: tuple[Record, ...] = ()
    state_ends: tuple[int, ...] | None = None


class LoadTiers(Tiers, Protocol):
    """The tiers of one engine, as its scheduler sees them."""

    def lookup(self, query: Query) -> Offer | None:
        """Return what can be loaded for a starting request; None for nothing.

        An offer that ends where no request can go on, or that is of a refused tier, is refused and
        counted as a failure of its tier.
        The answer is taken, in part or whole, or not: `Step.loads` tells. It changes nothing, and
        may be asked again.
        """
        ...


class _NoTiers:
    def lookup(self, query: Query) -> None: ...

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        del block_ids
        return Failures()

    def drop(self, record: Record) -> None: ...
    def back_off(self, record: Record) -> None: ...


NO_TIERS: Final = _NoTiers()
"""An engine that loads nothing."""
