"""What of a hybrid KV cache can be found, by brute force: hashes, hits, and what is registered.

Invariant: a hit is what the rule says when every length is tried, or the engine's own search,
under its dialect. `cache_model` has the steps that fill such a cache.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvbraid.cache import CacheConfig, Findable, GroupOptions, Match
from kvbraid.events.model import Event
from kvbraid.hashing import NO_EXTRA_KEYS, EngineHash, ExtraKeys, block_hashes
from kvbraid.ids import BlockId
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind

from tests.reference import resume, vllm_search
from tests.reference.cache_face import ModelDebug, ModelPool
from tests.reference.cache_groups import Cross, Group, Ring, State, Table
from tests.reference.cache_memory import Memory, Request
from tests.reference.cache_pool import NULL, Key, Pool
from tests.reference.cache_retention import Keeper, reused_boundaries
from tests.reference.cache_stores import partial_store, store


class FindableModel:
    """The requests of a cache, their hits, and the blocks that become findable."""

    def __init__(self, config: CacheConfig) -> None:
        self.config, specs = config, config.topology.groups
        self.alignment = config.topology.alignment or math.lcm(*(g.block_size for g in specs))
        self.hash_block = resume.hash_block(config.topology)
        self.hit_alignment = self.hash_block if config.topology.partial_hits else self.alignment
        options = config.group_options or (GroupOptions(),) * len(specs)
        groups = [self._group(g, *pair) for g, pair in enumerate(zip(specs, options, strict=True))]
        self.memory = Memory(Pool(config.num_blocks, config.caching), groups)
        self.uses_eagle = any(spec.eagle for spec in specs)
        self.is_vllm = config.dialect is EngineDialect.VLLM
        self.eagle = [
            spec.eagle or (self.is_vllm and any(o.eagle for o in specs if look_alike(o, spec)))
            for spec in specs
        ]
        self.keepers = [
            Keeper(spec, eagle, self.hit_alignment, config.retention)
            for spec, eagle in zip(specs, self.eagle, strict=True)
        ]
        self.engine = EngineHash(
            config.hash_algo,
            config.hash_seed,
            block_size=self.hash_block,
            lookahead=config.topology.hash_lookahead,
        )
        self._next = 1
        self.pool, self.debug = ModelPool(lambda: self.memory), ModelDebug(lambda: self.memory)

    def _group(self, index: int, spec: GroupSpec, options: GroupOptions) -> Group:
        kind: type[Group] = KINDS.get(spec.kind, Group)
        cap, in_flight = None, self.config.max_in_flight_tokens
        if in_flight is not None and (spec.kind.is_window or spec.chunk):
            reach = (spec.chunk or 0) if spec.chunk else (spec.window or 1) - 1
            held = reach + options.extra_retained_tokens + in_flight
            held = min(held, self.config.max_model_len or held)
            cap = -(-held // spec.block_size) + spec.kind.is_window
        return (Ring if options.is_ring else kind)(index, spec, options, cap)

    # ---- requests ------------------------------------------------------------------------

    def add(
        self,
        tokens: Sequence[int],
        *,
        num_prompt_tokens: int | None = None,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
        session_id: str | None = None,
        block_hashes: Sequence[bytes] | None = None,
        will_return: float | None = None,
    ) -> int:
        del session_id, will_return  # One is only on the wire, the other a hint.
        handle, self._next = self._next, self._next + 1
        self.memory.requests[handle] = Request(
            list(tokens),
            len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
            extra,
            lora_id,
            self._hashes(tokens, extra) if block_hashes is None else list(block_hashes),
            [Table() for _ in self.memory.groups],
            given_hashes=block_hashes is not None,
        )
        return handle

    def extend(
        self, request: int, tokens: Sequence[int], *, block_hashes: Sequence[bytes] | None = None
    ) -> None:
        known = self.memory.requests[request]
        known.tokens += tokens
        if block_hashes is not None:
            known.hashes += block_hashes
        elif not known.given_hashes:
            known.hashes = self._hashes(known.tokens, known.extra)

    def truncate(self, request: int, num_tokens: int) -> None:
        known = self.memory.requests[request]
        del known.tokens[num_tokens:]
        del known.hashes[num_tokens // self.hash_block :]
        if not known.given_hashes:
            known.hashes = self._hashes(known.tokens, known.extra)
        known.num_computed_tokens = min(known.num_computed_tokens, num_tokens)

    def _hashes(self, tokens: Sequence[int], extra: ExtraKeys) -> list[bytes]:
        """Not a model of hashing: that one is in `engine_hash`."""
        return [*block_hashes(tokens, self.engine, extra)] if self.config.caching else []

    @property
    def num_groups(self) -> int:
        return len(self.memory.groups)

    # ---- hits ----------------------------------------------------------------------------

    def match(self, request: int) -> Match:
        self.memory.counts["num_matches"] += 1
        return self.hit_of(self.memory.requests[request])

    def hit_of(self, request: Request) -> Match:
        if not self.shared_groups():
            return Match(0, 0)  # Not that nobody objects: nothing is held.
        held, num_tokens = self._held(request), len(request.tokens)
        if self.is_vllm:
            hit = vllm_search.resume(self.config.topology, num_tokens, held)
        else:
            hit = resume.resume(self.config.topology, num_tokens, held)
        return Match(hit, self._junction(num_tokens, held))

    def _held(self, request: Request) -> list[frozenset[int]]:
        """Per group, the ends in tokens of the request's own prefixes that are findable."""
        ends = [((n + 1) * self.hash_block, digest) for n, digest in enumerate(request.hashes)]
        find = self.memory.pool.find
        return [
            frozenset(end for end, digest in ends if find((g, digest)) is not None)
            for g in range(len(self.memory.groups))
        ]

    def _junction(self, num_tokens: int, held: Sequence[frozenset[int]]) -> int:
        """How far the groups that are asked first could resume alone, if that is further."""
        topology = replace(
            self.config.topology,
            alignment=self.alignment,
            hash_block_size=self.hash_block,
            replay_tokens=0,
        )
        asked = [g for g in self.memory.groups if self._is_shared(g)]
        if len(topology.groups) == 1 or not asked:
            return 0
        first = next((g for g in asked if g.spec.kind.is_full), asked[0]).spec
        lead = [g.index for g in asked if look_alike(g.spec, first)]
        if self.is_vllm:
            hit = vllm_search.resume(topology, num_tokens, held)
            furthest = vllm_search.first_answer(topology, num_tokens, held)
            return furthest if furthest > hit else 0
        rest = replace(topology, groups=tuple(g.spec for g in asked))
        alone = replace(topology, groups=tuple(topology.groups[g] for g in lead))
        hit = resume.resume(rest, num_tokens, [held[g.index] for g in asked])
        furthest = resume.resume(alone, num_tokens, [held[g] for g in lead])
        return furthest if furthest > hit else 0

    def shared_groups(self) -> list[Group]:
        """The groups of which blocks are found at all."""
        return [g for g in self.memory.groups if self.config.caching and self._is_shared(g)]

    def _is_shared(self, group: Group) -> bool:
        """Whether a group is looked up and committed at all; replayed windows are not."""
        replayed = self.config.topology.replay_tokens and group.spec.kind.is_window
        return group.is_shared and not replayed and not group.options.is_ring

    def hits_of(self, request: Request, hit: int) -> list[list[int]]:
        """By group the blocks of a hit."""
        shared = [self._is_shared(group) and hit > 0 for group in self.memory.groups]
        looks: dict[int, vllm_search.Look | None] = {}
        if self.is_vllm and any(shared):
            held, num_tokens = self._held(request), len(request.tokens)
            looks = vllm_search.last_looks(self.config.topology, num_tokens, held)
        return [
            self._hit_blocks(group, request, hit, looks.get(group.index)) if is_shared else []
            for group, is_shared in zip(self.memory.groups, shared, strict=True)
        ]

    def _hit_blocks(
        self, group: Group, request: Request, hit: int, look: vllm_search.Look | None
    ) -> list[int]:
        """The blocks of a hit, empty where the next token reads nothing. `look`: how the engine
        came by them."""
        size, find = group.spec.block_size, self.memory.pool.find
        first = resume.first_needed(group.spec, hit) // size
        if group.spec.kind is SpecKind.MAMBA:
            first = -(-hit // size) - 1
        if group.spec.chunk is not None and look is not None:
            first = resume.first_needed(group.spec, look.max_length) // size
        if group.spec.window == 1 and look is not None and not look.drop:
            first -= 1  # The block that ended the search: nothing reads it.
        blocks = []
        for j in range(-(-hit // size)):
            is_whole = (j + 1) * size <= hit
            ends = [(j + 1) * size] if is_whole else self._tails(group, request, j, look)
            if group.spec.kind is SpecKind.MAMBA:
                ends = [hit]
            ends = ends if j >= first else []  # They may not even be hashed yet.
            digests = [request.hashes[end // self.hash_block - 1] for end in ends]
            found = (find((group.index, digest)) for digest in digests)
            blocks.append(next((b for b in found if b is not None), NULL))
        return blocks

    def _tails(
        self, group: Group, request: Request, place: int, look: vllm_search.Look | None
    ) -> list[int]:
        """Where the shared block of a hit that ends inside it may end itself, best first."""
        start, size = place * group.spec.block_size, group.spec.block_size
        last = min(start + size, len(request.hashes) * self.hash_block)
        if look is not None:
            last = min(last, look.max_length)
        return list(range(last // self.hash_block * self.hash_block, start, -self.hash_block))

    def _last_boundary(self, num_tokens: int, unit: int) -> int:
        """Where a prompt is resumed again: a token is left, or what a draft head drops."""
        limit = num_tokens - (not self.uses_eagle)
        return max(0, limit // unit * unit - unit * self.uses_eagle)

    # ---- commits -------------------------------------------------------------------------

    def commit(self, request: int, num_tokens: int, *, start: int | None = None) -> None:
        """`start`: where the step at hand begins, if it computes the last of these tokens."""
        known = self.memory.requests[request]
        self.memory.pool.author = request
        for group in self.memory.groups:
            if self.config.caching and self._is_shared(group):
                passed = self._passed_state(group, num_tokens, start)
                self._commit(group, known, self._num_cacheable(group, num_tokens), passed)

    def _passed_state(self, group: Group, end: int, start: int | None) -> int | None:
        """Where the state is that a step inside a block begins with, if it passes the block's end:
        that one stays in the block, which is not the state that its place says."""
        place, inside = divmod(start or 0, group.spec.block_size)
        is_passed = inside and end > (place + 1) * group.spec.block_size
        return place if is_passed and isinstance(group, State) and not self.is_vllm else None

    def _num_cacheable(self, group: Group, num_tokens: int) -> int:
        """Leading tokens of which a hit could ever be made, and whose KV is final."""
        final = max(0, num_tokens - self.config.num_reprefillable_tokens)
        if len(self.memory.groups) == 1:
            return final
        unit = 1 if self.config.topology.partial_hits else self.alignment
        aligned = num_tokens // unit * unit
        if self.eagle[group.index] and aligned:
            return min(final, final // unit * unit + group.spec.block_size)
        return aligned

    def _commit(self, group: Group, request: Request, num_tokens: int, passed: int | None) -> None:
        table, size = request.tables[group.index], group.spec.block_size
        hashed = len(request.hashes) * self.hash_block
        first, last = table.committed or 0, min(num_tokens, hashed) // size
        if last > first:
            reused = reused_boundaries(
                request.num_prompt_tokens, self.alignment, eagle=self.uses_eagle
            )
            reused += [request.junction] * (request.junction > 0)
            keeper = self.keepers[group.index]
            for run in self._unregistered(group, request, range(first, last)):
                held = [j for j in run if table.blocks[j] and j != passed]
                kept = [j for j in held if keeper.keeps(j, reused)]
                for j in kept:
                    self._register(group, request, table.blocks[j], (j + 1) * size)
                self._say(store(request, group, self.hash_block, run, kept))
            table.committed = last
        if isinstance(group, State):
            self._commit_state_tail(group, request, num_tokens)
            own = [self.memory.pool.own_key(b) for b in table.blocks[first:last] if b]
            group.this_step.update(key for key in own if key is not None)
        elif group.spec.kind.is_full and size != self.hash_block:
            self._commit_tail(group, request, num_tokens)

    def _unregistered(self, group: Group, request: Request, places: range) -> list[range]:
        """Runs of these places that leave out what a rewind left findable."""
        pool, size = self.memory.pool, group.spec.block_size
        runs = [range(places.start, places.start)]
        for j in places:
            block, end = request.tables[group.index].blocks[j], (j + 1) * size
            key = (group.index, request.hashes[end // self.hash_block - 1])
            if pool.own_end.get(block) == end and pool.own_key(block) == key:
                runs.append(range(j + 1, j + 1))
            else:
                runs[-1] = range(runs[-1].start, j + 1)
        return [run for run in runs if run]

    def _register(self, group: Group, request: Request, block: int, end: int) -> bool:
        key = (group.index, request.hashes[end // self.hash_block - 1])
        is_new, author = self.memory.pool.register(block, key, end), self.memory.pool.author
        if is_new and not isinstance(group, State) and author is not None:
            self.memory.findable.append(Findable(key[0], BlockId(block), key[1], end, author))
        return is_new

    def take_findable(self) -> list[Findable]:
        """See `CacheTiers`: of what is listed twice, the first was forgotten in between."""
        noted, self.memory.findable = self.memory.findable, []
        found = [n for n in noted if n.block_id in self.memory.pool.copies.get(key_of(n), ())]
        later = [{(*key_of(n), n.block_id) for n in found[i + 1 :]} for i in range(len(found))]
        return [
            n for n, rest in zip(found, later, strict=True) if (*key_of(n), n.block_id) not in rest
        ]

    def _commit_tail(self, group: Group, request: Request, num_tokens: int) -> None:
        """The prompt's last hash boundary, inside a block of a full group."""
        limit = request.num_prompt_tokens - (not self.eagle[group.index])
        end = limit // self.hash_block * self.hash_block
        place, table = end // group.spec.block_size, request.tables[group.index]
        if not 0 < end <= min(num_tokens, len(request.hashes) * self.hash_block):
            return
        if end % group.spec.block_size and place < len(table.blocks) and table.blocks[place]:
            self._register_part(group, request, table.blocks[place], end)

    def _commit_state_tail(self, group: Group, request: Request, num_tokens: int) -> None:
        """A state that was taken exactly where the same prompt would resume."""
        unit, size = self.hash_block, group.spec.block_size
        end = self._last_boundary(request.num_prompt_tokens, unit)
        if self._is_partial_junction(request, num_tokens):
            end = num_tokens
        place, table = -(-end // size) - 1, request.tables[group.index]
        if table.checkpoint is not None:
            self._commit_checkpoint(group, request, table)
            return
        if not end or end != num_tokens or end > len(request.hashes) * unit:
            return
        if place >= len(table.blocks) or not table.blocks[place]:
            return
        self._register_part(group, request, table.blocks[place], end)
        group.this_step.add((group.index, request.hashes[end // unit - 1]))
        if end % size:
            table.tail, table.committed = (place, table.blocks[place]), place

    def _is_partial_junction(self, request: Request, num_tokens: int) -> bool:
        """Whether a step of the prompt ends right where others branched off."""
        is_prompt = request.num_computed_tokens < num_tokens <= request.num_prompt_tokens
        is_junction = num_tokens == request.junction and num_tokens % self.hash_block == 0
        return self.config.partial_junctions and is_prompt and is_junction

    def _commit_checkpoint(self, group: Group, request: Request, table: Table) -> None:
        """The state that was saved on the way is all that its block holds, whatever was committed
        by place; it is kept where somebody is expected to resume."""
        assert table.checkpoint is not None
        (end, place), unit, size = table.checkpoint, self.hash_block, group.spec.block_size
        block = table.blocks[place] if place < len(table.blocks) else NULL
        if not block:
            return
        awaited = [self._last_boundary(request.num_prompt_tokens, self.hit_alignment)]
        awaited += [request.junction]
        is_kept = end % size == 0 and self.keepers[group.index].keeps(end // size - 1, [])
        if end not in awaited and not is_kept:
            self.memory.pool.forget(block)
        elif self.memory.pool.own_end.get(block) != end <= len(request.hashes) * unit:
            self.memory.pool.forget(block)
            self._register_part(group, request, block, end)
            group.this_step.add((group.index, request.hashes[end // unit - 1]))

    def _register_part(self, group: Group, request: Request, block: int, end: int) -> None:
        if self._register(group, request, block, end):
            self._say(partial_store(request, group, self.hash_block, end))

    def _say(self, event: Event) -> None:
        self.memory.pool.events.append(event)


KINDS: Final[dict[SpecKind, type[Group]]] = {
    SpecKind.MAMBA: State,
    SpecKind.CROSS_ATTENTION: Cross,
}


def key_of(noted: Findable) -> Key:
    return noted.group, noted.block_hash


def look_alike(one: GroupSpec, other: GroupSpec) -> bool:
    """Whether the engine asks two groups together; a draft head's is no kind of its own."""
    return replace(one, eagle=False) == replace(other, eagle=False)
