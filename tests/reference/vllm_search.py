"""The search of vLLM 0.32 and 0.33 for the longest hit, as a plain loop over lists.

Written from what the engine does (candidate lowered spec by spec until it is stable), so that the
native core's dialect can be compared with it. Entries as in `resume`; every list below has one
truth value per block (or hash block) and is true only where all groups of a spec hold the entry.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference.resume import FULL, WINDOW, alignment, hash_block, restricts

Held = Sequence[Collection[int]]


@dataclass(frozen=True)
class Look:
    """How far a group was read, in tokens, and whether a block of what was found was dropped."""

    max_length: int
    drop: bool


@dataclass
class Merged:
    """Groups of equal spec, looked up together."""

    group: GroupSpec
    entries: set[int]
    eagle: bool
    last: Look | None = None
    members: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.group.kind in FULL


@dataclass
class Search:
    topology: Topology
    num_tokens: int
    align: int
    hash_block: int

    def fine(self, spec: Merged) -> bool:
        return bool(self.topology.partial_hits) and spec.group.block_size > self.hash_block

    def find(self, spec: Merged, max_length: int, *, drop: bool) -> int:
        spec.last = Look(max_length, drop)
        if spec.is_full:
            return self.find_full(spec, max_length, drop=drop)
        if spec.group.kind in WINDOW:
            return self.find_window(spec, max_length, drop=drop)
        if spec.group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
            return self.find_chunk(spec, max_length)
        assert spec.group.kind is SpecKind.MAMBA
        return self.find_state(spec, max_length)

    def find_full(self, spec: Merged, max_length: int, *, drop: bool) -> int:
        size = spec.group.block_size
        hit = 0
        while hit + size <= max_length and hit + size in spec.entries:
            hit += size
        if self.fine(spec):
            last = min(hit + size - self.align, max_length // self.align * self.align)
            for end in range(last, hit, -self.align):
                if end in spec.entries:
                    hit = end
                    break
        if drop and hit:
            hit -= min(self.align, size)
        return hit - hit % self.align

    def find_window(self, spec: Merged, max_length: int, *, drop: bool) -> int:
        assert spec.group.window is not None
        size = spec.group.block_size
        held = [(i + 1) * size in spec.entries for i in range(max_length // size)]
        need = ceil((spec.group.window - 1) / size) + drop
        run = 0
        blocks = None
        for i in reversed(range(len(held))):
            if not held[i]:
                run = 0
                continue
            edge = i if drop else i + 1
            if run == 0 and size != self.align and edge * size % self.align:
                continue
            run += 1
            if run >= need:
                blocks = i + run
                break
        if blocks is None:
            blocks = self.floor_blocks(run, size)
        if drop and blocks:
            blocks = self.floor_blocks(blocks - 1, size)
        return blocks * size

    def floor_blocks(self, blocks: int, size: int) -> int:
        while size != self.align and blocks * size % self.align:
            blocks -= 1
        return blocks

    def find_chunk(self, spec: Merged, max_length: int) -> int:
        assert spec.group.chunk is not None
        size = spec.group.block_size
        assert size == self.align, "vLLM refuses chunked groups beside other block sizes"
        end = max_length // spec.group.chunk * spec.group.chunk // size * size
        while end + size <= max_length and end + size in spec.entries:
            end += size
        return end

    def find_state(self, spec: Merged, max_length: int) -> int:
        ends = range(max_length // self.align * self.align, 0, -self.align)
        return next((end for end in ends if end in spec.entries), 0)


def merge(topology: Topology, held: Held) -> list[Merged]:
    """Specs in the engine's order, full attention first."""
    specs: list[Merged] = []
    for index, (group, entries) in enumerate(zip(topology.groups, held, strict=True)):
        if not restricts(topology, group, strict=True):
            continue
        for spec in specs:
            if replace(spec.group, eagle=False) == replace(group, eagle=False):
                spec.entries &= set(entries)
                spec.eagle |= group.eagle
                spec.members.append(index)
                break
        else:
            specs.append(Merged(group, set(entries), group.eagle, members=[index]))
    return sorted(specs, key=lambda spec: not spec.is_full)


def resume(topology: Topology, num_tokens: int, held: Held) -> int:
    return search_all(topology, num_tokens, held)[0]


def last_looks(topology: Topology, num_tokens: int, held: Held) -> dict[int, Look | None]:
    """By group that is looked up: what the blocks of its hit come from."""
    specs = search_all(topology, num_tokens, held)[1]
    return {index: spec.last for spec in specs for index in spec.members}


def search_all(topology: Topology, num_tokens: int, held: Held) -> tuple[int, list[Merged]]:
    """The hit, and the specs as they were looked up last."""
    search = Search(topology, num_tokens, alignment(topology), hash_block(topology))
    entries = [{e for e in group if e <= num_tokens} for group in held]
    specs = merge(topology, entries)
    if len(topology.groups) == 1:
        hit = search.find(specs[0], num_tokens - 1, drop=specs[0].eagle)
    else:
        hit = settle(search, specs)
    return max(hit - topology.replay_tokens, 0), specs


def longest_for(search: Search, spec: Merged, current: int) -> int:
    """A draft head's groups look one unit further, which they give up again."""
    if not spec.eagle or spec.group.kind is SpecKind.MAMBA:
        return current
    margin = search.hash_block if search.fine(spec) else spec.group.block_size
    hashed = search.num_tokens // search.hash_block * search.hash_block
    return min(current + margin, hashed)


def settle(search: Search, specs: list[Merged]) -> int:
    hit = search.num_tokens - 1
    simple = len(specs) == 2 and specs[0].is_full
    known: dict[int, int] = {}
    verified: set[int] = set()
    while True:
        current = hit
        for index, spec in enumerate(specs):
            if index in known:
                current = min(current, known[index])
                continue
            drop = spec.eagle and index not in verified
            longest = longest_for(search, spec, current) if drop else current
            found = search.find(spec, longest, drop=drop)
            if drop:
                verified.add(index)
            elif found < current:
                verified.clear()
            current = found
            if spec.is_full:
                known[index] = found
        if current >= hit:
            return hit
        hit = current
        if simple:
            return hit


def first_answer(topology: Topology, num_tokens: int, held: Held) -> int:
    """What the groups that are asked first say to the longest possible hit."""
    search = Search(topology, num_tokens, alignment(topology), hash_block(topology))
    spec = merge(topology, [{e for e in group if e <= num_tokens} for group in held])[0]
    return search.find(spec, longest_for(search, spec, num_tokens - 1), drop=spec.eagle)
