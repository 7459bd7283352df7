"""Blocks that runs read and released while a load may still turn out bad, and runs that ended.

Invariant: what a run has read counts while the run lasts. A run that has ended counts until its
last step is processed. Both count longer if a report may still come on a load that had begun by
then. A block that is handed out again holds something else, so what was read before has a number
of its own (`contents`). A report by place means what was read. A report by block also means what
the block holds now. What a run computed and another one found counts like what it read: only its
content leads from the one to the other once both have given the block back. Nothing here reads a
cache.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.ids import BlockId
from kvbraid.recovery.decision.plan import RecoveryPlan
from kvbraid.recovery.decision.run import GivenBack, Run
from kvbraid.recovery.ledger.contents import Content, Contents, History, block_of
from kvbraid.recovery.ledger.open_loads import Moment, OpenLoads

_NOTHING: Final = Content(0)
_NOBODY: Final[Mapping[tuple[int, int], int]] = {}


class _Read(NamedTuple):
    """What was at a place of a run, and since when; `load` filled it, or anybody's.

    `copied` is that of `GivenBack`."""

    group: int
    position: int
    content: Content
    since: Moment
    load: int | None
    copied: bool = False


class _Start(NamedTuple):
    """When a run has got its first blocks, and the first token that it computes."""

    time: int = 0
    num_tokens: int = 0


@dataclass(slots=True)
class _Ended:
    """A run that has given its blocks back: `tables` have the contents as at `since`, and `load`
    has filled some."""

    run: Run
    last_step: int | None
    since: Moment
    load: int | None
    tables: list[list[Content]]
    read: list[_Read]
    start: _Start


class Past(NamedTuple):
    """What the past adds to a decision.

    Attributes:
        former: As in `kvbraid.recovery.assess`.
        ended: The runs that have ended.
        given_back: By request, what its run that goes on has given back.
    """

    former: list[BlockId]
    ended: list[Run]
    given_back: Mapping[int, list[GivenBack]]


class Meant(NamedTuple):
    """What a report may mean besides what is there: earlier runs of requests, and what blocks held
    before they were handed out again."""

    requests: frozenset[int] = frozenset()
    blocks: frozenset[BlockId] = frozenset()


class ReleasedBlocks:
    """What the runs of one cache released: it has `num_blocks`, of `block_sizes` tokens by group.

    `loads` are those that reports may mean.
    """

    def __init__(self, num_blocks: int, block_sizes: Sequence[int], late_steps: int) -> None:
        self.loads: Final = OpenLoads(late_steps)
        self._num_blocks: Final = num_blocks
        self._sizes: Final = block_sizes
        self._num_loads = 0
        self._contents: Final = Contents()
        self._read: Final[dict[int, list[_Read]]] = {}
        self._starts: Final[dict[int, _Start]] = {}  # Of runs that go on.
        self._ended: list[_Ended] = []
        self._former: list[Content] = []

    # Loads begin and end, blocks are handed out.

    def begin(self, number: int) -> None:
        """Note that a load begins."""
        self._num_loads = number + 1
        self.loads.begin(number)

    def hand_out(self, block_ids: Sequence[int]) -> None:
        """Note that blocks begin to hold something new."""
        if self.is_watching:
            self._contents.hand_out(block_ids)

    @property
    def is_watching(self) -> bool:
        """Whether it matters what is handed out: otherwise nothing was read that a report may
        mean, and no run has ended with its steps in flight."""
        return bool(self._num_loads or self._ended)

    @property
    def has_loads(self) -> bool:
        """Whether a load has begun: before, nothing was read that may be garbage."""
        return self._num_loads > 0

    @property
    def now(self) -> Moment:
        """This moment. What a run reads from now on until it gives it back is read since now."""
        return Moment(self._contents.now, self._num_loads)

    @property
    def is_open(self) -> bool:
        """Whether a report may still come on a load that has begun."""
        return self.loads.concern(self.now)

    # Runs start, give blocks back, and end.

    def start(self, request: int, num_tokens: int) -> None:
        """Note that a run has just got its first blocks, and computes what follows so many."""
        self._starts[request] = _Start(self._contents.now, num_tokens)

    def discard(self, request: int) -> None:
        """Note that a run has ended before anybody read anything of it."""
        self._starts.pop(request, None)
        self._read.pop(request, None)

    def found(self, blocks: Iterable[GivenBack], authors: Iterable[int | None]) -> None:
        """Note that a run has found blocks, each with the request that had registered it."""
        by_author: dict[int, list[GivenBack]] = {}
        for block, author in zip(blocks, authors, strict=True):
            if author is not None:
                by_author.setdefault(author, []).append(block)
        for author, own in by_author.items():
            left = {block: self._contents.handed_out(block.block_id) for block in own}
            if author in self._starts:
                read = self._read.get(author, [])
                left = self._note_computed(self._starts[author], read, left)
                if read:
                    self._read[author] = read
            for ended in self._ended if left else ():
                if ended.run.request == author:
                    until = ended.since.time
                    left = self._note_computed(ended.start, ended.read, left, until)

    def _note_computed(
        self,
        start: _Start,
        read: list[_Read],
        blocks: Mapping[GivenBack, int],
        until: int | None = None,
    ) -> dict[GivenBack, int]:
        """Add what a run has computed to what is kept of it, if it got it before `until`.

        `blocks` were handed out at these times. Returns those that other runs have got.
        """
        left: dict[GivenBack, int] = {}
        latest: dict[tuple[int, int], int] = {}
        for each in read:
            latest[each[:2]] = max(each.since.time, latest.get(each[:2], 0))
        for block, time in blocks.items():
            if time < start.time or (until is not None and time > until):
                left[block] = time
                continue
            is_computed = start.num_tokens < (block.position + 1) * self._sizes[block.group]
            if is_computed and latest.get(block[:2], -1) < time:
                read.append(_Read(*block[:2], Content(block.block_id), self.now, None))
        return left

    def rewind(self, request: int, num_tokens: int) -> None:
        """Note that a run goes back in place: what it had read after that it computes now."""
        if request in self._starts:
            start = self._starts[request]
            self._starts[request] = start._replace(num_tokens=min(start.num_tokens, num_tokens))
        if request in self._read:
            read, sizes = self._read[request], self._sizes
            self._read[request] = [r for r in read if r.position * sizes[r.group] < num_tokens]

    def keeps(self, *, in_flight: bool) -> bool:
        """Whether a run that ends now counts from now on, and so its tables do; `in_flight`: steps
        use them."""
        return in_flight or self.is_open

    def give_back(
        self,
        request: int,
        gone: Iterable[GivenBack],
        since: Moment,
        filled: Mapping[tuple[int, int], int] = _NOBODY,
    ) -> None:
        """Note what a run has read since a moment, and what is no longer in its tables.

        `filled` has the places, as group and position, that its own load filled, with that load.
        """
        new = [
            _Read(*g[:2], Content(g.block_id), since, filled.get(g[:2]), g.copied) for g in gone
        ]
        if new:
            self._read.setdefault(request, []).extend(new)

    def end(
        self,
        run: Run,
        tables: Sequence[Sequence[BlockId]],
        last_step: int | None,
        load: int | None,
    ) -> None:
        """Note that a run has given its blocks back; steps up to `last_step` use them, and `load`
        has filled some."""
        read, start = self._read.pop(run.request, []), self._starts.pop(run.request, _Start())
        if self.keeps(in_flight=last_step is not None):
            contents = [[Content(block) for block in table] for table in tables]
            self._ended.append(_Ended(run, last_step, self.now, load, contents, read, start))

    def told(self, request: int, num_tokens: int) -> None:
        """Note how many tokens a request has by a run that has ended, in a step in flight."""
        for ended in reversed(self._ended):
            if ended.run.request == request:
                ended.run = ended.run._replace(num_tokens=num_tokens)
                break

    def landed(self, request: int) -> None:
        """Note that no step of a request's ended runs is in flight any more."""
        for ended in self._ended:
            if ended.run.request == request:
                ended.last_step = None

    @property
    def ended_requests(self) -> frozenset[int]:
        """The requests of runs that have ended and count."""
        return frozenset(ended.run.request for ended in self._ended)

    def is_in_flight(self, request: int) -> bool:
        """Whether steps of a request's ended runs have not been processed."""
        return any(e.run.request == request and e.last_step is not None for e in self._ended)

    def processed(self, step: int) -> None:
        """Note that a step was processed, and forget the runs that nothing can mean any more."""
        self.loads.processed()
        for ended in self._ended:
            if ended.last_step is not None and ended.last_step <= step:
                ended.last_step = None
        self._ended = [
            e for e in self._ended if e.last_step is not None or self.loads.concern(e.since)
        ]

    # What a decision is made from.

    @property
    def is_long(self) -> bool:
        """Whether so much was handed out that it is time to `catch_up`."""
        return self._contents.num_logged > self._num_blocks

    def catch_up(self) -> None:
        """Number what was read as it is now. Runs have told all that they have given back."""
        history = self._contents.catch_up()
        for request, read in list(self._read.items()):
            kept = [*self._still(history, read)]
            if kept:
                self._read[request] = kept
            else:
                del self._read[request]
        for ended in self._ended:
            may_be_meant = self.loads.concern(ended.since)
            ended.read = [*self._still(history, ended.read)]
            tables = [history.contents(table, ended.since.time) for table in ended.tables]
            ended.tables = tables if may_be_meant else [[*map(_present, t)] for t in tables]

    def _still(self, history: History, read: Iterable[_Read]) -> Iterator[_Read]:
        for each in read:
            content = history.content(each.content, each.since.time)
            if content >= 0 or self._is_meant(each):
                yield each._replace(content=content)

    def _is_meant(self, read: _Read) -> bool:
        return self.loads.concern(read.since) if read.load is None else read.load in self.loads

    def meant(self) -> Meant:
        """Return what a report may mean besides what is there, after `catch_up`."""
        contents = [each.content for read in self._read.values() for each in read]
        for ended in self._ended:
            contents += [each.content for each in ended.read]
            contents += [content for table in ended.tables for content in table]
        return Meant(
            requests=self.ended_requests,
            blocks=frozenset(block_of(content) for content in contents if content < 0),
        )

    def past(self) -> Past:
        """Return what the past adds to a decision, after `catch_up`."""
        numbers: dict[Content, BlockId] = {}

        def number(content: Content) -> BlockId:
            if content >= 0:
                return BlockId(content)
            return numbers.setdefault(content, BlockId(self._num_blocks + len(numbers)))

        def gone(read: Iterable[_Read]) -> list[GivenBack]:
            return [GivenBack(r.group, r.position, number(r.content), r.copied) for r in read]

        ended = [
            self._answering(e)._replace(
                given_back=gone(e.read), ended_tables=[[*map(number, t)] for t in e.tables]
            )
            for e in self._ended
        ]
        given_back = {request: gone(read) for request, read in self._read.items()}
        self._former = [*numbers]
        return Past([block_of(content) for content in numbers], ended, given_back)

    def _answering(self, ended: _Ended) -> Run:
        """A run as reports may mean it: a load on which none can come counts as a hit."""
        run = ended.run
        if ended.load is None or ended.load in self.loads or ended.last_step is not None:
            return run
        hit = run.num_local_tokens + run.num_loaded_tokens
        return run._replace(num_local_tokens=hit, num_loaded_tokens=0)

    def readers(self, numbers: Iterable[BlockId]) -> list[int]:
        """Return the requests whose ended runs had blocks, or contents of `past`, in tables."""
        bad = {self._content(number) for number in numbers}
        return [
            ended.run.request
            for ended in self._ended
            if not all(bad.isdisjoint(table) for table in ended.tables)
        ]

    def _content(self, number: BlockId) -> Content:
        is_former = number >= self._num_blocks
        return self._former[number - self._num_blocks] if is_former else Content(number)

    def judged(self, plan: RecoveryPlan) -> None:
        """Forget what is known to be garbage by a plan that was made from `past`: whoever has read
        it was told."""
        bad = {self._content(number) for number in (*plan.tainted, *plan.lost)}
        for request, read in list(self._read.items()):
            self._read[request] = [each for each in read if each.content not in bad]
        for ended in self._ended:
            ended.read = [each for each in ended.read if each.content not in bad]
            ended.tables = [
                table if bad.isdisjoint(table) else [_NOTHING if c in bad else c for c in table]
                for table in ended.tables
            ]


def _present(content: Content) -> Content:
    return content if content >= 0 else _NOTHING
