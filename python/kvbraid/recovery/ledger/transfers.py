"""Loads that have begun: what ranks report on them, which ranks may still write, and what failed.

A load is settled once every rank has reported its end or given it up; only then is what failed of
it judged, whole, so that no part counts as good that a rank has not spoken of. It is over once
every rank has reported its end. Nothing here holds a block.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, GroupBlock, Load, LoadReport, Offer, Target
from kvbraid.recovery.ledger.released_blocks import Meant

_NO_MORE: Final = Meant()


@dataclass(slots=True)
class _Transfer:
    load: Load
    pending: set[int]
    given_up: set[int] = field(default_factory=set)
    is_judged: bool = False

    @property
    def is_settled(self) -> bool:
        return self.pending <= self.given_up


class Transfers:
    """The loads of one scheduler that are not over."""

    def __init__(self, num_ranks: int) -> None:
        self._ranks = range(num_ranks)
        self._transfers: dict[int, _Transfer] = {}
        self._failures: list[Failures] = []
        self._latest: dict[int, int] = {}
        self._num_begun = 0

    def begin(self, request: int, start: int, offer: Offer, targets: Iterable[Target]) -> Load:
        """Begin to load what a tier has offered after the first `start` tokens of a request."""
        load = Load(
            number=self._num_begun,
            request=request,
            start=start,
            num_tokens=offer.num_tokens,
            is_async=offer.is_async,
            tier=offer.tier,
            records=offer.records,
            targets=tuple(targets),
        )
        self._transfers[load.number] = _Transfer(load, set(self._ranks))
        self._latest[request] = load.number
        self._num_begun += 1
        return load

    def check(self, reports: Sequence[LoadReport], must_settle: Iterable[Load] = ()) -> None:
        """Refuse reports of unknown ranks or loads, and loads that they leave unsettled.

        Raises:
            InvalidValueError: As said; nothing has changed.
        """
        spoken: set[tuple[int, int]] = set()
        for report in reports:
            if report.rank not in self._ranks:
                raise InvalidValueError(
                    f"a report of rank {report.rank}; expected 0 to {len(self._ranks) - 1}"
                )
            for number in (*report.ended, *report.given_up):
                spoken.add((number, report.rank))
                if not 0 <= number < self._num_begun:
                    raise InvalidValueError(f"a report on load {number}, which has not begun")
        for load in must_settle:
            known = self._transfers.get(load.number)
            silent = set() if known is None else known.pending - known.given_up
            silent -= {rank for number, rank in spoken if number == load.number}
            if silent:
                raise InvalidValueError(
                    f"rank {min(silent)} has not reported on load {load.number} of request "
                    f"{load.request}: a synchronous load ends, or is given up, before its step"
                )

    def note(self, report: LoadReport, meant: Meant = _NO_MORE) -> list[int]:
        """Take a report; return the loads that this rank has ended now.

        A report that names a load is about that load, as far as it says something of its request
        or its blocks. What else it says of a request is about its latest load, and about earlier
        runs that it may have `meant`.
        """
        known = self._transfers.keys() & {*report.ended, *report.given_up}
        named = [self._transfers[number].load for number in known]
        stale = {load.request for load in named if self._latest[load.request] not in known}
        said = replace(
            report.failures,
            places={r: p for r, p in report.failures.places.items() if r not in stale},
            requests=[r for r in report.failures.requests if r not in stale],
        )
        others = meant.requests - {load.request for load in named}
        failures = self._in_contents(_of_loads(said, named), others)
        if failures or failures.causes:
            self._failures.append(failures)
        ended = []
        for number in sorted({*report.ended}):
            transfer = self._transfers.get(number)
            if transfer is not None and report.rank in transfer.pending:
                transfer.pending.remove(report.rank)
                ended.append(number)
        for number in report.given_up:
            if number in self._transfers:
                self._transfers[number].given_up.add(report.rank)
        return ended

    def _in_contents(self, failures: Failures, others: Collection[int]) -> Failures:
        """Name what loads under way fill: a request may load anew before one is judged. Of
        `others`, earlier runs may be meant as well."""
        loads = {
            transfer.load.request: transfer.load
            for number, transfer in self._transfers.items()
            if not transfer.is_judged and self._latest[transfer.load.request] == number
        }
        named, places = set[Target](), dict(failures.places)
        for request in loads.keys() & places.keys():
            left = {g: {*positions} for g, positions in places[request].items()}
            for target in loads[request].targets:
                if target.position in left.get(target.group, ()):
                    left[target.group].remove(target.position)
                    named.add(target)
            # What the load does not fill is judged, and counted, as it was said.
            if request not in others:
                places[request] = {g: positions for g, positions in left.items() if positions}
        for request in loads.keys() & {*failures.requests}:
            named.update(loads[request].targets)
        return replace(
            failures,
            places={request: groups for request, groups in places.items() if groups},
            contents={*failures.contents, *(GroupBlock(t.group, t.block_id) for t in named)},
            requests=[r for r in failures.requests if r not in loads or r in others],
        )

    def settle(self, meant: Meant = _NO_MORE) -> tuple[list[Load], Failures]:
        """Return the loads that are settled now, and what failed, of them or of earlier ones.

        What is reported of loads that are not settled yet is kept until they are. If something
        else may be `meant`, too, it is judged at once as well.
        """
        settled = []
        for transfer in self._transfers.values():
            if transfer.is_settled and not transfer.is_judged:
                transfer.is_judged = True
                settled.append(transfer.load)
                if transfer.given_up:
                    places = [GroupBlock(t.group, t.block_id) for t in transfer.load.targets]
                    self._failures.append(Failures(contents=places))
        unsettled = [t.load for t in self._transfers.values() if not t.is_judged]
        # What names a request is about its latest load: it has left the blocks of earlier ones.
        waited = {load.request for load in unsettled if self._latest[load.request] == load.number}
        blocks = {target.block_id for load in unsettled for target in load.targets}
        said = Failures.union(self._failures)
        kept = _about(said, lambda block: block in blocks, lambda request: request in waited)
        failures = _about(
            said,
            lambda block: block not in blocks or block in meant.blocks,
            lambda request: request not in waited or request in meant.requests,
        )
        failures = replace(failures, causes=said.causes)
        self._failures = [kept] if kept else []
        self._transfers = {n: t for n, t in self._transfers.items() if t.pending}
        requests = {transfer.load.request for transfer in self._transfers.values()}
        self._latest = {r: number for r, number in self._latest.items() if r in requests}
        return settled, failures

    @property
    def num_begun(self) -> int:
        """How many loads have begun since the scheduler was made."""
        return self._num_begun

    def pending(self, number: int) -> frozenset[int]:
        """Return the ranks that may still write the blocks of a load."""
        transfer = self._transfers.get(number)
        return frozenset(transfer.pending) if transfer is not None else frozenset()

    @property
    def loads(self) -> list[Load]:
        """The loads that are not over, in the order of their numbers."""
        return [transfer.load for transfer in self._transfers.values()]

    @property
    def writers(self) -> dict[BlockId, int]:
        """The blocks that a rank may still write, each with its load."""
        return {t.block_id: load.number for load in self.loads for t in load.targets}


def _of_loads(failures: Failures, loads: Iterable[Load]) -> Failures:
    """Name the contents that these loads fill, where blocks are named."""
    own = {GroupBlock(t.group, t.block_id) for load in loads for t in load.targets}
    if not own or not (failures.blocks or failures.group_blocks):
        return failures
    blocks = {pair.block_id for pair in own}
    return replace(
        failures,
        blocks=[block for block in failures.blocks if block not in blocks],
        group_blocks=[pair for pair in failures.group_blocks if pair not in own],
        contents={pair for pair in own if pair.block_id in failures.blocks}
        | (own & {*failures.group_blocks}),
    )


def _about(
    failures: Failures, has_block: Callable[[BlockId], bool], has_request: Callable[[int], bool]
) -> Failures:
    """What is said of some blocks and requests, without causes."""
    return Failures(
        places={r: places for r, places in failures.places.items() if has_request(r)},
        group_blocks={pair for pair in failures.group_blocks if has_block(pair.block_id)},
        blocks={*filter(has_block, failures.blocks)},
        requests={*filter(has_request, failures.requests)},
        contents={pair for pair in failures.contents if has_block(pair.block_id)},
    )
