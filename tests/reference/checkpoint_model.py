"""Retention by value by brute force: a list of checkpoints, compared by their paths.

Invariant: a checkpoint is a prefix that can be resumed, named by the hashes along it, and it keeps
everything that it needs. Its neighbours, the places where paths part, and the blocks that would be
free without it are found every time by comparing it with all others. There is no tree, no queue
and no count.

A checkpoint's value is computed when a part of its formula changes: it is used; it gets or loses a
continuation; the checkpoint before it, where a request would resume without it, is made or
evicted; another path parts from the blocks that lead to it, or joins them again. In between it
keeps its value, although the likelihoods, which all checkpoints share, may have changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from kvbraid.cache import ByValue, EvictionPolicy
from kvbraid.spec import GroupSpec

from tests.reference import resume
from tests.reference.cache_pool import Pool

MOST_NEIGHBOURS = 64

Path: TypeAlias = tuple[bytes, ...]
"""The hashes of a prefix, one per hash block."""
Place: TypeAlias = tuple[int, int]
"""A group and a position in its block table."""


class Origin(Enum):
    END = "a prompt or a request ended"
    JUNCTION = "requests branched off"
    INTERVAL = "a multiple of the interval"


class Ending(Enum):
    START = "a request that began something new"
    TURN = "a request that went on where another had ended"


GUESSES = {Ending.START: 1 / 4, Ending.TURN: 1 / 2}


@dataclass
class Rate:
    """As often as lately, beginning with a guess that counts for eight."""

    guess: float
    seen: float = 0
    resumed: float = 0

    def see(self) -> None:
        self.seen = self.seen * (1 - 1 / 256) + 1
        self.resumed *= 1 - 1 / 256

    @property
    def value(self) -> float:
        return (self.resumed + 8 * self.guess) / (self.seen + 8)


@dataclass
class Likelihood:
    """How likely somebody resumes: at an end that nobody went on from, or where somebody did."""

    ends: dict[Ending, Rate] = field(
        default_factory=lambda: {ending: Rate(guess) for ending, guess in GUESSES.items()}
    )
    passed: dict[tuple[Origin, bool], Rate] = field(
        default_factory=lambda: {
            (origin, is_branch): Rate(1 / 2 if is_branch else 1 / 32)
            for origin in Origin
            for is_branch in (False, True)
        }
    )

    def of(self, point: "Checkpoint", num_ways: int) -> Rate:
        """So many ways lead on from it now."""
        is_shared = point.is_led_on_by_several(num_ways)
        if num_ways or is_shared:
            return self.passed[point.origin, is_shared]
        return self.ends[point.how]


class Key(NamedTuple):
    """What goes first: the least value; of equal ones the least recently used."""

    value: float
    used_at: int


@dataclass(eq=False)
class Checkpoint:
    path: Path
    end: int
    full: dict[Place, int]  # The blocks that lead to it from the very first token.
    tail: list[int]  # What else a resume needs.
    origin: Origin
    how: Ending
    has_ended: bool = False
    was_resumed: bool = False
    num_resumed: int = 0
    is_shared: bool = False  # Several ways led on from it at once.
    used_at: int = 0
    used_level: float = 0.0
    key: Key | None = None  # As of when it was weighed last; None: it frees nothing.
    came_after: "Checkpoint | None" = None  # Without a full group: see `Checkpoints.before`.

    def is_led_on_by_several(self, num_ways: int) -> bool:
        return num_ways > 1 or self.num_resumed > 1 or self.is_shared

    def needs(self, block: int) -> bool:
        return block in self.tail or block in self.full.values()


def same(one: Sequence[bytes], other: Sequence[bytes], count: int) -> bool:
    """Whether two paths are as long as that and equal up to there: a hash is of all before it."""
    return 0 < count <= min(len(one), len(other)) and one[count - 1] == other[count - 1]


@dataclass(frozen=True)
class Geometry:
    """What does not change. `cached`: per group that is, its spec and whether a draft head reads
    one block beyond a hit; `hash_block` and `alignment`, where hits can end, in tokens."""

    cached: dict[int, tuple[GroupSpec, bool]]
    hash_block: int
    alignment: int

    @property
    def full_step(self) -> int | None:
        """Where paths can part: at blocks of a full group, the smallest."""
        sizes = [spec.block_size for spec, _ in self.cached.values() if spec.kind.is_full]
        return min(sizes, default=None)

    @property
    def needs_no_tail(self) -> bool:
        groups = self.cached.values()
        are_whole = all(self.alignment % spec.block_size == 0 for spec, _ in groups)
        return are_whole and all(spec.kind.is_full and not eagle for spec, eagle in groups)

    def tail(self, end: int) -> list[Place]:
        """What a resume at `end` needs beside all whole blocks of full groups."""
        places = []
        for group, (spec, eagle) in self.cached.items():
            needed = resume.needed_blocks(replace(spec, eagle=eagle), end)
            first = end // spec.block_size if spec.kind.is_full else 0
            places += [(group, j) for j in sorted(needed) if j >= first]
        return places

    def size(self, place: Place) -> int:
        return self.cached[place[0]][0].block_size

    def tokens(self, place: Place) -> int:
        """The end of a whole block, in tokens."""
        return (place[1] + 1) * self.size(place)

    def leading(self, end: int) -> list[Place]:
        """The whole blocks of full groups that lead to `end`."""
        return [
            (group, j)
            for group, (spec, _) in self.cached.items()
            if spec.kind.is_full
            for j in range(end // spec.block_size)
        ]


@dataclass
class Checkpoints:
    geometry: Geometry
    policy: ByValue
    pool: Pool
    points: list[Checkpoint] = field(default_factory=list)
    likelihood: Likelihood = field(default_factory=Likelihood)
    level: float = 0.0
    clock: int = 0
    evicts: EvictionPolicy = EvictionPolicy.DENSE
    interval: int = 0
    since: dict[int, int] = field(default_factory=dict)
    """For blocks in the pool's queue that a resume may need, the use that they came after."""

    def __post_init__(self) -> None:
        self.evicts = self.policy.policy or EvictionPolicy.DENSE
        self.interval = self.policy.interval

    # ---- paths ---------------------------------------------------------------------------

    def shared(self, path: Path, point: Checkpoint) -> int:
        """Up to how many tokens a path is known to be that of a checkpoint: up to a block of the
        full groups, as a block that is not whole is of one path alone, or up to the end of both.
        """
        step, end = self.geometry.full_step, point.end
        ends = set(range(step, end + 1, step) if step else [end])
        if len(path) == len(point.path):
            ends.add(end)
        return max((end for end in ends if same(path, point.path, end // self.unit)), default=0)

    def furthest(self, path: Path, points: Iterable[Checkpoint]) -> int:
        return max((self.shared(path, point) for point in points), default=0)

    def at(self, path: Path, tokens: int) -> Checkpoint | None:
        there = (one for one in self.points if one.end == tokens == self.shared(path, one))
        return next(there, None)

    def before(self, point: Checkpoint) -> list[Checkpoint]:
        """Where one would resume without it, and without that one too, and so on.

        Hashes of states alone do not tell what lies on the way to them. Without a full group it
        is what did so when the checkpoint came, as far as it is still there.
        """
        if self.geometry.full_step is not None:
            shorter = (one for one in self.points if one.end < point.end)
            found = [one for one in shorter if self.shared(point.path, one) == one.end]
            return sorted(found, key=lambda one: -one.end)
        above = point.came_after
        return [] if above is None else [above] * (above in self.points) + self.before(above)

    def above(self, point: Checkpoint) -> Checkpoint | None:
        return next(iter(self.before(point)), None)

    def right_below(self, point: Checkpoint) -> list[Checkpoint]:
        """Those that would resume there without themselves."""
        return [one for one in self.points if self.above(one) is point]

    def ways_from(self, path: Path, tokens: int) -> list[list[Checkpoint]]:
        """What a place of a path leads to, by the ways that part there."""
        ways: list[list[Checkpoint]] = []
        for one in self.points:
            if one.end <= tokens or self.shared(path[: tokens // self.unit], one) < tokens:
                continue
            way = next((way for way in ways if self.shared(one.path, way[0]) > tokens), None)
            if way is None:
                ways.append([one])
            else:
                way.append(one)
        return ways

    def num_ways(self, point: Checkpoint) -> int:
        if self.geometry.full_step is None:
            return len(self.right_below(point))
        return len(self.ways_from(point.path, point.end))

    def right_after(self, path: Path, tokens: int) -> Checkpoint | None:
        """The first checkpoint after a place of a path, if no paths part before it. All paths
        part at the very beginning."""
        ways = self.ways_from(path, tokens)
        if len(ways) != 1 or not tokens:
            return None
        first = min(ways[0], key=lambda one: one.end)
        others = [one for one in ways[0] if one is not first]
        return first if all(first in self.before(one) for one in others) else None

    def right_before(self, path: Path, tokens: int) -> Checkpoint | None:
        """The last checkpoint before a place of a path, if no paths part after it."""
        path = path[: tokens // self.unit]
        ends = (self.shared(path, one) for one in self.points)
        return self.at(path, max((end for end in ends if end < tokens), default=0))

    @property
    def unit(self) -> int:
        return self.geometry.hash_block

    # ---- values --------------------------------------------------------------------------

    def weigh(self, point: Checkpoint | None) -> None:
        """Value it anew; None stands for a place that is no checkpoint."""
        if point is None:
            return
        num_ways, above = self.num_ways(point), self.above(point)
        if num_ways and not point.tail:
            point.key = None  # It frees nothing.
            return
        floor, cost = above.end if above else 0, self.policy.cost
        lost = cost.per_token * (point.end - floor)
        lost += cost.per_pair * (point.end * point.end - floor * floor) / 2
        num_blocks = sum(
            position >= floor // self.geometry.size((group, position))
            for group, position in self.geometry.tail(point.end)
        )  # What lies before the place where one resumes instead is mostly needed there too.
        if not num_ways:
            parting = self.furthest(point.path, (one for one in self.points if one is not point))
            num_blocks += sum(self.geometry.tokens(place) > parting for place in point.full)
        rate = self.likelihood.of(point, num_ways).value
        value = point.used_level + rate * lost / max(num_blocks, 1)
        point.key = Key(value if self.evicts is EvictionPolicy.VALUE else 0.0, point.used_at)

    def weigh_right_below(self, point: Checkpoint) -> None:
        """Too many of them keep their values until something else happens to them."""
        found = self.right_below(point)
        for one in found if len(found) <= MOST_NEIGHBOURS else ():
            self.weigh(one)

    def queue(self) -> list[Checkpoint]:
        """What can be let go, least value first."""
        found = [(point.key, point) for point in self.points if point.key is not None]
        return [point for _, point in sorted(found, key=lambda pair: pair[0])]

    # ---- what is kept --------------------------------------------------------------------

    def is_kept(self, block: int) -> bool:
        return any(point.needs(block) for point in self.points)

    def keep(self, path: Path, how: Ending, end: int, origin: Origin) -> Checkpoint | None:
        """Make a boundary a checkpoint, or use it once more; None if not all is held."""
        if not self.is_known(path, end):
            return None
        hashes, path = path, path[: end // self.unit]
        there = self.at(path, end)
        if there is not None:
            self.use(there)
            return there
        known = self.furthest(path, self.points)
        full = self.leading(path, known, end)
        tail = self.blocks_at(hashes, self.geometry.tail(end), end)
        if full is None or tail is None or not self.tells(path, known, {**full, **tail}):
            return None
        point = Checkpoint(path, end, full, [*tail.values()], origin, how)
        self.insert(point, known)
        return point

    def is_known(self, path: Path, end: int) -> bool:
        """Whether any group holds a block under the hash of the prefix."""
        count = end // self.unit
        return count <= len(path) and any(h == path[count - 1] for _, h in self.pool.copies)

    def tells(self, path: Path, known: int, blocks: dict[Place, int]) -> bool:
        """Whether the prefix is known as part of another one, or a new block has its hash."""
        first = {self.pool.find((group, path[-1])) for group in self.geometry.cached}
        new = {b for place, b in blocks.items() if self.geometry.tokens(place) > known}
        return known == len(path) * self.unit or not first.isdisjoint(new)

    def leading(self, path: Path, known: int, end: int) -> dict[Place, int] | None:
        """The same blocks as others along the path keep; after them the oldest copies."""
        along = [one for one in self.points if known and self.shared(path, one) == known]
        places = self.geometry.leading(end)
        old = [place for place in places if self.geometry.tokens(place) <= known]
        found = self.blocks_at(path, [place for place in places if place not in old], end)
        return None if found is None else {place: along[0].full[place] for place in old} | found

    def blocks_at(self, path: Path, places: Iterable[Place], end: int) -> dict[Place, int] | None:
        """The oldest copies; a block that `end` is inside of may be held up to there alone."""
        blocks: dict[Place, int] = {}
        for place in places:
            tokens = self.geometry.tokens(place)
            if tokens - self.geometry.size(place) < end:
                tokens = min(tokens, end)
            count = tokens // self.unit
            block = self.pool.find((place[0], path[count - 1])) if count <= len(path) else None
            if block is None:
                return None
            blocks[place] = block
        return blocks

    def insert(self, point: Checkpoint, known: int) -> None:
        """Add a checkpoint whose path others share up to `known` tokens."""
        is_new_way = known < point.end
        above, later = self.at(point.path, known), self.right_after(point.path, known)
        if is_new_way and above is None and later and self.geometry.needs_no_tail:
            above = self.part(later, known)
        point.came_after = above
        self.points.append(point)
        point.is_shared = self.num_ways(point) > 1
        self.pool.free = [block for block in self.pool.free if not self.is_kept(block)]
        if above is None or not is_new_way:
            self.weigh(later)
        if not is_new_way:
            self.likelihood.of(point, self.num_ways(point)).see()
        elif above is not None:
            above.was_resumed = False
            above.is_shared |= self.num_ways(above) > 1
            self.likelihood.of(above, self.num_ways(above)).see()
            self.weigh(above)
        self.use(point)
        self.weigh_right_below(point)

    def part(self, later: Checkpoint, tokens: int) -> Checkpoint:
        """Where no tail is needed, paths part at a checkpoint."""
        full = {p: b for p, b in later.full.items() if self.geometry.tokens(p) <= tokens}
        path = later.path[: tokens // self.unit]
        point = Checkpoint(path, tokens, full, [], Origin.JUNCTION, Ending.START)
        point.used_at, point.used_level = later.used_at, later.used_level
        self.points.append(point)
        self.weigh(later)
        return point

    # ---- what happens --------------------------------------------------------------------

    def use(self, point: Checkpoint) -> None:
        self.clock += 1
        point.used_at, point.used_level = self.clock, self.level
        self.weigh(point)

    def resume(self, path: Path, how: Ending, tokens: int) -> Ending:
        """A request goes on after `tokens`; returns the ending that it will have."""
        point = self.keep(path, how, tokens, Origin.JUNCTION)
        if point is None:
            return Ending.START
        num_ways = self.num_ways(point)
        is_shared = point.is_led_on_by_several(num_ways)
        goes_on = not num_ways and not is_shared and point.has_ended
        if not point.was_resumed:
            point.was_resumed = True
            if num_ways or is_shared or point.has_ended:
                self.likelihood.of(point, num_ways).resumed += 1
        point.num_resumed += 1
        self.weigh(point)
        return Ending.TURN if goes_on else Ending.START

    def end(self, path: Path, how: Ending, tokens: int) -> None:
        """A request gives its blocks back: the last checkpoint of its path, unless others led on
        from there, is where it ended."""
        if not tokens:
            return
        self.keep(path, how, tokens, Origin.END)
        path = path[: tokens // self.unit]
        point = self.at(path, self.furthest(path, self.points))
        if point is not None and not self.num_ways(point):
            point.how, point.has_ended, point.was_resumed = how, True, False
            self.likelihood.of(point, 0).see()
            self.weigh(point)
        above = point and self.above(point)
        if above is not None:
            self.use(above)

    def move(self, source: int, destination: int) -> None:
        """A block's hashes are another one's now."""
        for point in self.points:
            point.tail = [destination if b == source else b for b in point.tail]
            moved = {place: destination for place, b in point.full.items() if b == source}
            point.full |= moved

    # ---- what goes -----------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a checkpoint goes before the next victim that waits."""
        queue, waiting = self.queue(), self.pool.free
        if not queue or not waiting:
            return bool(queue)
        key = queue[0].key
        return (
            self.evicts is EvictionPolicy.DENSE
            and key is not None
            and key.used_at < self.since.get(waiting[0], 0)
        )

    def let_go(self) -> None:
        """Let the first checkpoint go, whose blocks are the next victims. There must be one."""
        point = self.queue()[0]
        assert point.key is not None
        self.level = max(self.level, point.key.value)
        waiting = list(self.pool.free)
        self.drop([point])
        freed = [block for block in self.pool.free if block not in waiting]
        self.pool.free = freed + waiting
        self.since.update(dict.fromkeys(freed, 0))

    def forget(self, block: int) -> None:
        """A block loses its hashes: all goes that needs it, the furthest first."""
        lost = [point for point in self.points if point.needs(block)]
        self.drop(sorted(lost, key=lambda point: (-point.end, point.used_at)))

    def drop(self, points: Sequence[Checkpoint]) -> None:
        """What none that is left needs waits in the queue, the blocks of furthest ends first."""
        blocks = {block for one in points for block in (*one.full.values(), *one.tail)}
        for point in points:
            self.remove(point)
        for block in sorted(blocks, key=lambda block: (-self.pool.own_end[block], block)):
            if not self.is_kept(block) and block not in self.pool.references:
                self.pool.free.append(block)
                self.since[block] = self.clock

    def remove(self, point: Checkpoint) -> None:
        above, below, num_ways = self.above(point), self.right_below(point), self.num_ways(point)
        self.points.remove(point)
        for one in below if len(below) <= MOST_NEIGHBOURS else ():
            self.weigh(one)
        if self.geometry.full_step is None:
            self.left(above, point, num_ways)
        elif num_ways:
            if num_ways == 1:
                self.weigh(self.right_before(point.path, point.end))
        else:
            parting = self.furthest(point.path, self.points)
            there = self.at(point.path, parting)
            if parting and there is None and len(self.ways_from(point.path, parting)) == 1:
                # Of the paths that parted there one is left: it is led to by more.
                self.weigh(self.right_after(point.path, parting))
                self.weigh(self.right_before(point.path, parting))
            self.left(there, point, num_ways)

    def left(self, above: Checkpoint | None, point: Checkpoint, num_ways: int) -> None:
        """One way fewer leads on from a checkpoint. Who would have gone on from the end of its
        last one is expected there instead."""
        if above is not None and not num_ways and not self.num_ways(above):
            if not above.is_led_on_by_several(0):
                above.how, above.has_ended = point.how, point.has_ended
                above.was_resumed = point.was_resumed
            above.used_at = max(above.used_at, point.used_at)
            above.used_level = max(above.used_level, point.used_level)
        self.weigh(above)
