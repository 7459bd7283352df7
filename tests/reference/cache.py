"""A reference hybrid KV cache: one engine's memory, obvious rather than fast.

Its law: a block belongs to one pool of ids for all groups, is free or referenced, and is found
by its group and the hash of the whole prefix that it ends. A request reuses the longest boundary
that every group accepts, found by trying each one; while it runs, groups give back what their
layers no longer read; what is committed, evicted and cleared is said in the engine's own events.
It never publishes, never waits and holds no tensor. Other caches are tested against this one.

    tokens    0       16       32       48       64     (blocks of 16, window 32)
    full      | b1    | b2     | b3     | b4     |      stays until the request ends
    window    | null  | null   | b7     | b8     |      what the window has left is freed
    mamba     | null  | null   | null   | b9     |      one state, taken at the block's end
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from kvbraid.cache.chunk import Position, chunk_rules, plan_chunk
from kvbraid.errors import InvalidValueError, TooLargeError, TopologyError
from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbraid.spec import GroupSpec, SpecKind, Topology

HashChain: TypeAlias = Callable[[Sequence[int], str | None], Sequence[bytes]]
"""Tokens and cache salt -> one chained hash per whole hash block."""
Key: TypeAlias = tuple[int, bytes]  # Group and prefix hash.

NULL_BLOCK: Final = 0  # Stands where a group needs no block; never freed, never cached.


def _window(group: GroupSpec, boundary: int) -> int:
    assert group.window is not None  # GroupSpec refused it otherwise.
    return max(0, boundary - group.window + 1)


def _chunked(group: GroupSpec, boundary: int) -> int:
    assert group.chunk is not None  # ReferenceCache refused it otherwise.
    return boundary // group.chunk * group.chunk


SKIPPED: Final[Mapping[SpecKind, Callable[[GroupSpec, int], int]]] = {
    SpecKind.FULL_ATTENTION: lambda _group, _boundary: 0,
    SpecKind.MLA_ATTENTION: lambda _group, _boundary: 0,
    SpecKind.SINK_FULL_ATTENTION: lambda _group, _boundary: 0,
    SpecKind.SLIDING_WINDOW: _window,
    SpecKind.SLIDING_WINDOW_MLA: _window,
    SpecKind.CHUNKED_LOCAL_ATTENTION: _chunked,
    SpecKind.MAMBA: lambda _group, boundary: max(0, boundary - 1),
}
"""Leading tokens that nothing computed after a boundary reads: all that the kinds differ in."""


def needed_blocks(group: GroupSpec, boundary: int) -> range:
    """The blocks to hold for a resume at `boundary`: those not skipped, and for a draft head's
    group one beyond, which is recomputed."""
    beyond = group.eagle and group.kind is not SpecKind.MAMBA and boundary > 0
    first = SKIPPED[group.kind](group, boundary) // group.block_size
    return range(first, boundary // group.block_size + beyond)


class BlockPool:
    """All blocks of one engine: reference counts, the LRU free queue, and copies by key.

    `free` lists unreferenced blocks, the next victim first. Freed cached blocks join its tail
    and stay findable until they are reused; blocks that nobody can find join its head.
    """

    def __init__(self, num_blocks: int) -> None:
        self.references = [0] * num_blocks
        self.keys: list[Key | None] = [None] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.copies: dict[Key, list[int]] = {}

    def find(self, key: Key) -> int | None:
        """Return the oldest copy; requests that computed a block at the same time left several."""
        return self.copies[key][0] if key in self.copies else None

    def touch(self, block: int) -> None:
        """Take a reference, out of the free queue if it is the first."""
        self.free.pop(block, None)
        self.references[block] += 1

    def allocate(self) -> tuple[int, Key | None]:
        """Take the next victim; its key, if it had one, is forgotten and returned."""
        block, _ = self.free.popitem(last=False)
        evicted, self.keys[block] = self.keys[block], None
        if evicted is not None:
            self.copies[evicted].remove(block)
            if not self.copies[evicted]:
                del self.copies[evicted]
        self.references[block] = 1
        return block, evicted

    def register(self, block: int, key: Key) -> None:
        """Make a referenced block findable, next to any copies."""
        assert self.references[block]
        assert self.keys[block] is None
        self.keys[block] = key
        self.copies.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; what is given first is evicted first."""
        for block in blocks:
            self.references[block] -= 1
        unreferenced = [block for block in blocks if not self.references[block]]
        self.free.update(dict.fromkeys(unreferenced))
        for block in reversed(unreferenced):
            if self.keys[block] is None:
                self.free.move_to_end(block, last=False)


@dataclass(slots=True, eq=False)
class Request:
    """One running request. `tables[g][j]` is the block at position j of group g."""

    tokens: tuple[int, ...]  # The prompt, then the tokens that will be generated.
    num_prompt_tokens: int
    salt: str | None
    hashes: Sequence[bytes]
    hit: int  # Tokens reused from the cache.
    junction: int  # Where the leading groups alone could resume, if beyond the hit, else 0.
    num_computed_tokens: int
    tables: list[list[int]] = field(default_factory=list)
    num_committed: list[int] = field(default_factory=list)  # Blocks per group.

    @property
    def is_done(self) -> bool:
        """Whether all but the last generated token, which nothing reads, are computed."""
        return self.num_computed_tokens >= max(self.num_prompt_tokens, len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished request: tokens reused, and the events of each engine step that had any."""

    hit: int
    batches: tuple[tuple[Event, ...], ...]


class ReferenceCache:
    """The cache of one engine, for whole requests (`run`) or step by step.

    Args:
        topology: Groups and alignment; the hit is the pure rule's, whatever its dialect.
        num_blocks: Pool size, the null block included.
        chain: Hashes of a request at the topology's hash block size.
        retention: None commits all that a window or state group can ever serve. 0 commits only
            what serves the prompt's end and its junction; N tokens, every multiple of N too.
        max_step_tokens: Most tokens that one step computes.

    Raises TopologyError for a kind or feature that this cache has no rule for.
    """

    def __init__(
        self,
        topology: Topology,
        num_blocks: int,
        *,
        chain: HashChain,
        retention: int | None = None,
        max_step_tokens: int = 1024,
    ) -> None:
        _refuse_unsupported(topology)
        sizes = [group.block_size for group in topology.groups]
        self.groups = topology.groups
        self.alignment = topology.alignment or math.lcm(*sizes)
        self.hash_block_size = topology.hash_block_size or math.gcd(*sizes)
        self.retention, self.max_step_tokens = retention, max_step_tokens
        self.pool = BlockPool(num_blocks)
        self.running: list[Request] = []
        self._rules = chunk_rules(topology, max_chunk_tokens=max_step_tokens)
        self._chain = chain
        self._events: list[Event] = []
        self._all = range(len(self.groups))
        # The groups an engine asks first: the first full one, else the first, and its equals.
        lead = next((group for group in self.groups if group.kind.is_full), self.groups[0])
        self._lead = [g for g in self._all if self.groups[g] == lead]

    def match(self, prompt: Sequence[int], *, salt: str | None = None) -> int:
        """Return the tokens that a request would reuse now; mutates nothing."""
        return self._longest(self._all, self._chain(prompt, salt), len(prompt))

    def run(
        self, prompt: Sequence[int], outputs: Sequence[int] = (), *, salt: str | None = None
    ) -> Run:
        """Serve one request to its end; see `begin` and `step`.

        On TooLargeError the request is gone, and its events are left to `take_events`.
        """
        request = self.begin(prompt, outputs, salt=salt)
        ends = []  # Of the steps, in events.
        try:
            while not request.is_done:
                self.step(request)
                ends.append(len(self._events))
        finally:
            self.finish(request)
        events = self.take_events()
        batches = [events[a:b] for a, b in pairwise([0, *ends])]
        return Run(request.hit, tuple(filter(None, batches)))

    def begin(
        self, prompt: Sequence[int], outputs: Sequence[int] = (), *, salt: str | None = None
    ) -> Request:
        """Admit a request: look its prompt up and take references on what it reuses.

        Raises InvalidValueError for an empty prompt.
        """
        if not prompt:
            raise InvalidValueError("the prompt has 0 tokens; give at least one")
        known, tokens = self._chain(prompt, salt), (*prompt, *outputs)
        hit = self._longest(self._all, known, len(prompt))
        lead = self._longest(self._lead, known, len(prompt))
        hashes, junction = self._chain(tokens, salt), lead if lead > hit else 0
        request = Request(tokens, len(prompt), salt, hashes, hit, junction, hit)
        for g, group in enumerate(self.groups):
            table = [NULL_BLOCK] * (hit // group.block_size)
            for j in range(SKIPPED[group.kind](group, hit) // group.block_size, len(table)):
                block = self.pool.find(self._key(g, j, hashes))
                assert block is not None  # The rule accepted this boundary.
                self.pool.touch(block)
                table[j] = block
            request.tables.append(table)
            request.num_committed.append(len(table))
        self.running.append(request)
        return request

    def step(self, request: Request) -> None:
        """Compute the next tokens: a chunk of the prompt, or one generated token.

        As in the engine, blocks are committed when the step is scheduled, not when it is done.
        Raises TooLargeError when the pool is short of blocks; nothing was computed then.
        """
        end = self._step_end(request)
        for g in self._all:
            self._release_skipped(request, g)
        missing, free = [self._num_missing(request, g, end) for g in self._all], self.pool.free
        if sum(missing) > len(free):
            raise TooLargeError(
                f"token {end} needs {sum(missing)} more blocks, {len(free)} of "
                f"{len(self.pool.keys)} are free: finish a request or enlarge the pool"
            )
        for g in self._all:
            self._extend(request, g, end, missing[g])
        for g in self._all:
            self._commit(request, g, end)
        request.num_computed_tokens = end

    def finish(self, request: Request) -> None:
        """Give back all its blocks, tails first; what was committed stays findable."""
        self.running.remove(request)
        for table in request.tables:
            self.pool.release([block for block in reversed(table) if block != NULL_BLOCK])

    def reset(self) -> bool:
        """Forget all cached blocks, unless a request runs; return whether it was done."""
        if self.running:
            return False
        self.pool.keys = [None] * len(self.pool.keys)
        self.pool.copies.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> tuple[Event, ...]:
        """Drain the events since the last call, in order."""
        events, self._events = tuple(self._events), []
        return events

    def _longest(self, groups: Sequence[int], hashes: Sequence[bytes], num_tokens: int) -> int:
        """The largest aligned boundary below `num_tokens` that all `groups` accept."""
        last = (num_tokens - 1) // self.alignment * self.alignment
        for boundary in range(last, 0, -self.alignment):
            if all(self._accepts(g, boundary, hashes) for g in groups):
                return boundary
        return 0

    def _accepts(self, g: int, boundary: int, hashes: Sequence[bytes]) -> bool:
        num_hashed = len(hashes) * self.hash_block_size // self.groups[g].block_size
        return all(
            j < num_hashed and self.pool.find(self._key(g, j, hashes)) is not None
            for j in needed_blocks(self.groups[g], boundary)
        )

    def _key(self, g: int, j: int, hashes: Sequence[bytes]) -> Key:
        """Block j of group g is named by the hash of the prefix that ends with it."""
        return g, hashes[(j + 1) * self.groups[g].block_size // self.hash_block_size - 1]

    def _step_end(self, request: Request) -> int:
        start, prompt = request.num_computed_tokens, request.num_prompt_tokens
        position = Position(
            start=start,
            num_prompt_tokens=prompt,
            num_tokens=max(prompt, start + 1),
            budget=min(max(prompt - start, 1), self.max_step_tokens),
            junction=request.junction,
        )
        return start + plan_chunk(self._rules, position)

    def _release_skipped(self, request: Request, g: int) -> None:
        group, table = self.groups[g], request.tables[g]
        skipped = SKIPPED[group.kind](group, request.num_computed_tokens)
        last = min(skipped // group.block_size, len(table))
        left = [j for j in reversed(range(last)) if table[j]]
        self.pool.release([table[j] for j in left])
        table[:last] = [NULL_BLOCK] * last

    def _num_missing(self, request: Request, g: int, end: int) -> int:
        """New blocks for the tokens up to `end`; a state group takes one, however far it goes."""
        missing = max(0, -(-end // self.groups[g].block_size) - len(request.tables[g]))
        return min(missing, 1) if self.groups[g].kind is SpecKind.MAMBA else missing

    def _extend(self, request: Request, g: int, end: int, num_new: int) -> None:
        table, length = request.tables[g], -(-end // self.groups[g].block_size)
        table.extend([NULL_BLOCK] * (length - num_new - len(table)))
        for _ in range(num_new):
            block, evicted = self.pool.allocate()
            table.append(block)
            if evicted is not None:
                removed = (wire_hash(evicted[1]),)
                self._events.append(BlockRemoved(block_hashes=removed, group_idx=evicted[0]))

    def _commit(self, request: Request, g: int, end: int) -> None:
        """Make the blocks that end by `end` findable, and say so in one event.

        The event spans the tokens of all of them but lists only those kept: a sparse store.
        """
        group, table, first = self.groups[g], request.tables[g], request.num_committed[g]
        size, hashes = group.block_size, request.hashes
        last = end // self.alignment * self.alignment // size
        if group.eagle and last:
            last = min(end // size, last + 1)
        if last <= first:
            return
        kept = [j for j in range(first, last) if table[j] and self._is_kept(request, group, j)]
        request.num_committed[g] = last
        salt = None if request.salt is None else (request.salt,)
        keys = [self._key(g, j, hashes) for j in kept]
        for j, key in zip(kept, keys, strict=True):
            self.pool.register(table[j], key)
        stored = BlockStored(
            block_hashes=tuple(wire_hash(digest) for _, digest in keys),
            parent_block_hash=wire_hash(self._key(g, first - 1, hashes)[1]) if first else None,
            token_ids=request.tokens[first * size : last * size],
            block_size=size,
            extra_keys=tuple(None if j else salt for j in kept) or None,
            group_idx=g,
            kv_cache_spec_kind=group.kind.value,
            kv_cache_spec_sliding_window=group.window,
        )
        self._events.append(stored)

    def _is_kept(self, request: Request, group: GroupSpec, j: int) -> bool:
        """Whether a resume at some boundary that retention names would need block j."""
        is_state = group.kind is SpecKind.MAMBA
        if not (group.kind.is_window or is_state) or (is_state and self.retention is None):
            return True
        ends = [request.num_prompt_tokens - 1, request.junction]
        ends += [request.num_prompt_tokens - g.block_size for g in self.groups if g.eagle]
        boundaries = [max(0, at) // self.alignment * self.alignment for at in ends]
        interval = self.alignment if self.retention is None else self.retention
        if interval:
            boundaries.append(-(-(j + 1) * group.block_size // interval) * interval)
        return any(j in needed_blocks(group, at) for at in boundaries)

    def check_integrity(self) -> None:
        """Assert what must hold after every call."""
        pool = self.pool
        tables = [table for request in self.running for table in request.tables]
        counted = Counter(block for table in tables for block in table if block != NULL_BLOCK)
        assert counted == Counter({block: n for block, n in enumerate(pool.references) if n})
        assert set(pool.free) == set(range(1, len(pool.keys))) - set(counted)
        listed = {block: key for key, blocks in pool.copies.items() for block in blocks}
        assert sum(map(len, pool.copies.values())) == len(listed)
        assert all(pool.copies.values())
        assert listed == {b: key for b, key in enumerate(pool.keys) if key is not None}
        assert NULL_BLOCK not in listed


def wire_hash(digest: bytes) -> int:
    """An engine's integer form of a hash: the last eight bytes, big-endian."""
    return int.from_bytes(digest[-8:], "big")


def _refuse_unsupported(topology: Topology) -> None:
    for g, group in enumerate(topology.groups):
        lacks_chunk = group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and group.chunk is None
        if group.kind not in SKIPPED or not group.prefix_cacheable or lacks_chunk:
            raise TopologyError(f"group {g}, {group}: give a cacheable kind, and its chunk")
    if topology.partial_hits or topology.replay_tokens or topology.hash_lookahead:
        raise TopologyError(f"{topology}: no partial hits, replay or lookahead in this cache")
