"""Who writes a shared tainted block again, and who waits until it is whole.

Invariant: a block with waiters always has exactly one owner, and an owner is an earlier request
than everyone who waits for it, so no wait is circular. A waiter is released when steps of the
owner that computed the whole block have been processed: what is only scheduled releases nobody. An
owner that leaves hands its blocks on in the same call. Nothing here decides or touches a cache.

```text
take(plan)        owned, others wait ---- processed(owner, tokens >= whole_at) --> whole, forgotten
                       |     ^
   leaves(owner)       v     |  take(the next plan)
                  handed on to the lowest waiter, which waits for that plan itself
```
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kvbraid.cache.tables import Places
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.recovery.decision.plan import Action, RecoveryPlan, RequestPlan


class Tables(Protocol):
    """What the ledger asks of the tables of requests: `CacheManager.tables`."""

    def requests_of(self, block_ids: Sequence[BlockId]) -> Places:
        """Return where blocks stand."""
        ...


class HandedOn(NamedTuple):
    """Blocks whose owner has left before they were whole, each with its new owner.

    The new owners hold garbage where they counted on the old owner, so a new decision is due with
    these blocks as bad. Until `take` gets its plan, the new owners and their waiters are waiting.
    """

    owners: Mapping[BlockId, int]

    def __bool__(self) -> bool:
        """Whether anything was handed on."""
        return bool(self.owners)


@dataclass(slots=True)
class _Rewritten:
    """A block that its owner writes again; it is whole after `whole_at` tokens of any sharer."""

    owner: int
    whole_at: int
    waiters: set[int] = field(default_factory=set)
    is_decided: bool = True


class Ownership:
    """The ledger of one cache.

    Args:
        block_sizes: The tokens of a block, by group.
    """

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self._block_sizes: Final = tuple(block_sizes)
        self._blocks: Final[dict[BlockId, _Rewritten]] = {}
        self._owned: Final[dict[int, set[BlockId]]] = {}
        self._awaited: Final[dict[int, set[BlockId]]] = {}

    # A decision is applied.

    def take(self, plan: RecoveryPlan, tables: Tables) -> HandedOn:
        """Take over owners and waiters of a plan, when it is applied.

        What the plan says of its tainted blocks replaces what was known of them. Affected requests
        that give their blocks back leave, and hand on what the plan does not speak of. That is
        nothing if `blocks` were bad for the decision.

        Raises:
            InvalidValueError: In this plan, a request waits for a block that no earlier request
                writes, owns a block that is not its own to write, or would itself write a block
                that it waits for. As with every error, nothing has changed.
        """
        staying = {r: p for r, p in plan.requests.items() if p.action is Action.REWIND}
        taken = self._taken(staying, tables)
        self._check_kept(staying, plan.tainted)
        for block in plan.tainted:
            self._forget(block)
        for block, entry in taken.items():
            self._enter(block, entry)
        for request in sorted(plan.requests.keys() - staying.keys()):
            self.leaves(request)
        undecided = (b for b, e in self._blocks.items() if not e.is_decided)
        return HandedOn({block: self._blocks[block].owner for block in sorted(undecided)})

    def _taken(
        self, staying: Mapping[int, RequestPlan], tables: Tables
    ) -> dict[BlockId, _Rewritten]:
        """The entries of a plan."""
        owned = [block for plan in staying.values() for block in plan.owner_of]
        places = tables.requests_of(owned)
        taken: dict[BlockId, _Rewritten] = {}
        for request, plan in staying.items():
            for block in plan.owner_of:
                whole_at = self._whole_at(places, block, request)
                if block in taken or whole_at <= plan.resume:
                    raise InvalidValueError(
                        f"request {request} resumes at {plan.resume} and cannot own block {block},"
                        f" which is whole at {whole_at} tokens or has an owner; take plans of "
                        "`decide` as they are"
                    )
                taken[block] = _Rewritten(request, whole_at)
        for request, plan in staying.items():
            for block, owner in plan.waits_for.items():
                if block not in taken or not owner == taken[block].owner < request:
                    raise InvalidValueError(
                        f"request {request} waits for block {block} of request {owner}, which is "
                        "no earlier request that writes it; take plans of `decide` as they are"
                    )
                taken[block].waiters.add(request)
        return taken

    def _whole_at(self, places: Places, block: BlockId, request: int) -> int:
        for place in places.of(block):
            if place.request == request:
                return (place.position + 1) * self._block_sizes[place.group]
        msg = f"request {request} owns block {block}, which is not in its table; decide again"
        raise InvalidValueError(msg)

    def _check_kept(
        self, staying: Mapping[int, RequestPlan], tainted: Collection[BlockId]
    ) -> None:
        """Refuse a rewind to before a block that somebody else writes."""
        for request, plan in staying.items():
            for block in self._awaited.get(request, set()).difference(tainted):
                if plan.resume < self._blocks[block].whole_at:
                    raise InvalidValueError(
                        f"request {request} goes back to {plan.resume} tokens and would write "
                        f"block {block}, which request {self._blocks[block].owner} writes; "
                        "decide with `Ownership.blocks` as bad"
                    )

    def _enter(self, block: BlockId, entry: _Rewritten) -> None:
        self._blocks[block] = entry
        self._owned.setdefault(entry.owner, set()).add(block)
        for waiter in entry.waiters:
            self._awaited.setdefault(waiter, set()).add(block)

    def _forget(self, block: BlockId) -> _Rewritten | None:
        entry = self._blocks.pop(block, None)
        if entry is not None:
            _discard(self._owned, entry.owner, block)
            for waiter in entry.waiters:
                _discard(self._awaited, waiter, block)
        return entry

    # Steps are processed, requests leave.

    def processed(self, request: int, num_tokens: int) -> tuple[int, ...]:
        """Note how many tokens of a request are computed in steps that have ended.

        Returns the requests that wait for nothing any more, in ascending order.
        """
        waited = set[int]()
        for block in self._owned.get(request, set()).copy():
            entry = self._blocks[block]
            if entry.is_decided and entry.whole_at <= num_tokens:
                waited |= entry.waiters
                self._forget(block)
        return tuple(sorted(waiter for waiter in waited if not self.is_waiting(waiter)))

    def leaves(self, request: int) -> HandedOn:
        """Note that a request has ended or is preempted; its blocks go to their lowest waiters."""
        for block in self._awaited.pop(request, ()):
            self._blocks[block].waiters.remove(request)
        handed: dict[BlockId, int] = {}
        for block in sorted(self._owned.get(request, ())):
            entry = self._forget(block)
            if entry is not None and entry.waiters:
                heir = min(entry.waiters)
                entry.waiters.remove(heir)
                entry.owner, entry.is_decided = heir, False
                self._enter(block, entry)
                handed[block] = heir
        return HandedOn(handed)

    # Questions.

    @property
    def blocks(self) -> frozenset[BlockId]:
        """The blocks that are not whole yet: bad for every decision until they are."""
        return frozenset(self._blocks)

    def owner_of(self, request: int) -> tuple[BlockId, ...]:
        """Return the blocks that a request writes again, in ascending order."""
        return tuple(sorted(self._owned.get(request, ())))

    def waits_for(self, request: int) -> dict[BlockId, int]:
        """Return the blocks that a request waits for, each with its owner."""
        blocks = sorted(self._awaited.get(request, ()))
        return {block: self._blocks[block].owner for block in blocks}

    def is_waiting(self, request: int) -> bool:
        """Whether a request must not be scheduled: it waits for a block, or for a decision."""
        return request in self._awaited or any(
            not self._blocks[block].is_decided for block in self._owned.get(request, ())
        )

    def waiters(self) -> tuple[int, ...]:
        """Return who waits for blocks, in the order in which to preempt them.

        All of them come before any owner goes without blocks: the latest first, and those that are
        owners themselves last.
        """
        return tuple(sorted(self._awaited, key=lambda request: (request in self._owned, -request)))

    def check_integrity(self) -> None:
        """Assert the invariant of this ledger."""
        owned: dict[int, set[BlockId]] = {}
        awaited: dict[int, set[BlockId]] = {}
        for block, entry in self._blocks.items():
            assert block > 0, "nobody writes the null block"
            assert all(entry.owner < waiter for waiter in entry.waiters), f"{block}: in a circle"
            owned.setdefault(entry.owner, set()).add(block)
            for waiter in entry.waiters:
                awaited.setdefault(waiter, set()).add(block)
        assert owned == self._owned, "the blocks of owners differ from the owners of blocks"
        assert awaited == self._awaited, "the blocks of waiters differ from the waiters of blocks"


def _discard(by_request: dict[int, set[BlockId]], request: int, block: BlockId) -> None:
    by_request[request].discard(block)
    if not by_request[request]:
        del by_request[request]
