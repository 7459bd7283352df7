"""The whole hybrid KV cache by brute force, with the interface of `kvbraid.cache.CacheManager`.

Its law: a hit is what the rule says when every length is tried (or the engine's own search, under
its dialect); everything else is done block by block in vLLM's order. An operation that may fail is
tried on a copy. The model is slow, and never checks its arguments.
"""

import copy
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from kvbraid.cache import (
    CacheConfig,
    GroupOptions,
    Interval,
    Match,
    Need,
    NoFit,
    Starts,
    Statistics,
    Work,
)
from kvbraid.events.model import AllBlocksCleared, Event
from kvbraid.hashing import NO_EXTRA_KEYS, EngineHash, ExtraKeys, block_hashes
from kvbraid.ids import BlockId
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind

from tests.reference import resume, vllm_search
from tests.reference.cache_face import ModelDebug, ModelPool
from tests.reference.cache_groups import Cross, Group, Reach, Ring, Start, State, Table
from tests.reference.cache_memory import Fitted, Memory, Request
from tests.reference.cache_pool import (
    NULL,
    HasHeirsError,
    OutOfBlocksError,
    Pool,
    WouldWipeError,
)
from tests.reference.cache_retention import Keeper, reused_boundaries
from tests.reference.cache_stores import partial_store, store


class CacheModel:
    """See `kvbraid.cache.CacheManager`; `take_events` returns the structs themselves."""

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
        del session_id  # Only on the wire.
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
        self._told(handle, will_return)
        return handle

    def _told(self, request: int, will_return: float | None) -> None:
        """What is said of a request's end; only retention by value listens."""

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

    def roll_back(self, request: int, num_computed_tokens: int) -> None:
        self.memory.requests[request].num_computed_tokens = num_computed_tokens

    def can_roll_back(self, request: int, num_tokens: int) -> bool:
        """Whether what the next token reads is there, and no state is older than its drafts."""
        known = self.memory.requests[request]
        start, end = known.last_step
        if self.is_vllm or num_tokens == known.num_computed_tokens:
            return True
        for group, table in zip(self.memory.groups, known.tables, strict=True):
            drafts = group.options.num_speculative_blocks
            if isinstance(group, State) and not max(start + 1, end - drafts) <= num_tokens:
                return False
            if isinstance(group, Ring | Cross | State):
                continue
            first = min(resume.first_needed(group.spec, num_tokens), num_tokens)
            if not all(table.blocks[first // group.spec.block_size :]):
                return False
        return True

    def most_new_tokens(self, request: int) -> int:
        """Tokens of a step, the drafts among them no more than any state can go back by."""
        known, groups = self.memory.requests[request], self.memory.groups
        kept = [g.options.num_speculative_blocks for g in groups if isinstance(g, State)]
        drafts = sys.maxsize if self.is_vllm else min(kept, default=sys.maxsize)
        return max(1, len(known.tokens) - known.num_computed_tokens) + drafts

    def can_rewind(self, request: int, num_tokens: int) -> bool:
        """Whether every token that is read or computed again has its block."""
        known = self.memory.requests[request]
        for group, table in zip(self.memory.groups, known.tables, strict=True):
            if isinstance(group, Ring | Cross):
                continue
            first = resume.first_needed(group.spec, num_tokens)
            tokens = range(min(first, num_tokens), len(table.blocks) * group.spec.block_size)
            places = {token // group.spec.block_size for token in tokens}
            if isinstance(group, State) or not all(table.blocks[place] for place in places):
                return False
        return num_tokens <= known.num_computed_tokens

    def rewind(self, request: int, num_tokens: int) -> None:
        known, pool = self.memory.requests[request], self.memory.pool
        for group, table in zip(self.memory.groups, known.tables, strict=True):
            first = num_tokens // group.spec.block_size
            if table.committed is not None:
                table.committed = min(table.committed, first)
            for block in table.blocks[first:] if self._is_shared(group) else ():
                if pool.references[block] == 1 and pool.own_end.get(block, 0) > num_tokens:
                    pool.forget(block)
        self.memory.counts["num_rewound_tokens"] += known.num_computed_tokens - num_tokens
        known.num_computed_tokens = num_tokens

    def release(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        self._leave_step(requests, step_failed=step_failed)
        self._give_back(requests)
        for request in requests:
            del self.memory.requests[request]

    def preempt(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        self._leave_step(requests, step_failed=step_failed)
        stopped = self.memory.running.intersection(requests)
        self.memory.counts["num_preemptions"] += len(stopped)
        self._give_back(requests)

    def _leave_step(self, requests: Sequence[int], *, step_failed: bool) -> None:
        """What is never written is forgotten, unless somebody has adopted it: then nothing is."""
        pool, start = self.memory.pool, 0 if step_failed else self.memory.num_given
        left = [pair for pair in self.memory.unwritten[start:] if pair[0] in requests]
        own = [b for request, b in left if b in pool.keys and pool.authors[b] == request]
        others = {*self.memory.requests} - {*requests}
        if any(b in table for r in others for table in self.blocks(r) for b in own):
            raise HasHeirsError
        for block in dict.fromkeys(own):
            pool.forget(block)
            self.memory.counts["num_dropped_blocks"] += 1
        for request, _ in left:
            known = self.memory.requests[request]
            known.num_computed_tokens = min(known.num_computed_tokens, known.last_step[0])

    def _give_back(self, requests: Sequence[int]) -> None:
        stopped = self.memory.running.intersection(requests)
        self.memory.running -= stopped
        self.memory.preempted |= stopped
        for request in requests:
            known = self.memory.requests[request]
            for g, table in enumerate(known.tables):
                self.memory.pool.release(table.blocks[::-1])
                known.tables[g] = Table()
            known.num_computed_tokens = 0

    def pop_blocks(self, request: int) -> list[int]:
        self._leave_step([request], step_failed=False)
        known = self.memory.requests.pop(request)
        blocks = [block for table in known.tables for block in table.blocks]
        self.memory.held.update(block for block in blocks if block)
        return blocks

    def _hashes(self, tokens: Sequence[int], extra: ExtraKeys) -> list[bytes]:
        """Not a model of hashing: that one is in `engine_hash`."""
        return [*block_hashes(tokens, self.engine, extra)] if self.config.caching else []

    # ---- hits ----------------------------------------------------------------------------

    def match(self, request: int) -> Match:
        self.memory.counts["num_matches"] += 1
        known = self.memory.requests[request]
        if not self.config.caching or not any(map(self._is_shared, self.memory.groups)):
            return Match(0, 0)  # Not that nobody objects: nothing is held.
        held, num_tokens = self._held(known), len(known.tokens)
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

    def _is_shared(self, group: Group) -> bool:
        """Whether a group is looked up and committed at all; replayed windows are not."""
        replayed = self.config.topology.replay_tokens and group.spec.kind.is_window
        return group.is_shared and not replayed and not group.options.is_ring

    def _hits(self, request: Request, hit: int) -> list[list[int]]:
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

    # ---- steps ---------------------------------------------------------------------------

    def allocate(self, needs: Sequence[Need], *, reserved_blocks: int = 0) -> Fitted:
        new: list[list[list[int]]] = []
        for need in map(without_match, needs):
            before = copy.deepcopy(self.memory)
            try:
                new.append(self._allocate(need, reserved_blocks))
            except OutOfBlocksError as short:
                self.memory = before
                if short.has_retired and self.is_vllm:
                    self._retire(need)
                return Fitted(new, short.reason)
        return Fitted(new)

    def decode(self, requests: Sequence[int], tokens: Sequence[int]) -> Fitted:
        new: list[list[list[int]]] = []
        for request, token in zip(requests, tokens, strict=True):
            num_tokens = len(self.memory.requests[request].tokens)
            self.extend(request, [token])
            got = self.allocate([Need(request=request, num_new_tokens=1)])
            if not got.num_fit:
                self.truncate(request, num_tokens)
                return Fitted(new, got.reason)
            new += got.new
        return Fitted(new)

    def _allocate(self, need: Need, reserved_blocks: int) -> list[list[int]]:
        request, groups = self.memory.requests[need.request], self.memory.groups
        pool, limit = self.memory.pool, self.config.max_model_len
        if need.junction is not None:
            request.junction = need.junction
        local = self._local(need)
        computed = at_most(local + need.num_external_tokens, limit)
        hits = self._hits(request, need.num_hit_tokens)
        starts = [Start(blocks, local, computed - local) for blocks in hits]
        if any(map(self._is_unwritten, groups, starts)):
            raise OutOfBlocksError(NoFit.UNWRITTEN, has_retired=False)
        watermark = int(self.config.watermark * self.config.num_blocks) * need.is_waiting
        if need.full_sequence_must_fit:
            whole = at_most(len(request.tokens), limit)
            reach = Reach(whole, whole, need.num_encoder_tokens)
            wanted = self._num_needed(request, starts, reach, admission=True)
            demand(wanted <= pool.num_free, NoFit.FULL_SEQUENCE, has_retired=False)
            demand(wanted + watermark <= pool.num_free, NoFit.WATERMARK, has_retired=False)
        main = computed + need.num_new_tokens
        slots = at_most(main + need.num_lookahead_tokens, limit)
        reach = Reach(slots, main, need.num_encoder_tokens)
        self._retire(need)
        wanted = self._num_needed(request, starts, reach, admission=False)
        demand(wanted <= pool.num_free, NoFit.MEMORY)
        demand(wanted + watermark <= pool.num_free, NoFit.WATERMARK)
        demand(wanted + watermark + reserved_blocks <= pool.num_free, NoFit.RESERVED)
        self._count(need)
        self._adopt(request, starts, need)
        new = [g.extend(pool, t, reach) for g, t in zip(groups, request.tables, strict=True)]
        self._note_written(need, request)
        noted = len(pool.registered)
        if not need.delay_commit:
            self.commit(need.request, min(main, len(request.tokens)), start=computed)
        if self.memory.has_steps:
            new_blocks = [block for _, block in pool.registered[noted:]]
            self.memory.unwritten += [(need.request, block) for block in new_blocks]
        request.num_computed_tokens, request.last_step = main, (computed, main)
        return new

    def _note_written(self, need: Need, request: Request) -> None:
        """For each block that this step writes, how many tokens of the prefix it had before: until
        the step has run, no copy of it has more. A copy that the step makes had none."""
        for group, table in zip(self.memory.groups, request.tables, strict=True):
            place, inside = divmod(self._local(need), group.spec.block_size)
            had = place * group.spec.block_size + (0 if need.num_hit_tokens else inside)
            self.memory.written.update(dict.fromkeys(table.blocks[place:], had))

    def _count(self, need: Need) -> None:
        memory = self.memory
        if need.request in memory.running:
            return
        which = "resumed" if need.request in memory.preempted else "started"
        memory.running.add(need.request)
        memory.counts[f"{which} requests"] += 1
        memory.counts[f"{which} tokens"] += len(memory.requests[need.request].tokens)
        memory.counts[f"{which} hit"] += need.num_hit_tokens
        memory.counts["num_external_tokens"] += need.num_external_tokens
        memory.counts["num_junctions"] += bool(need.junction)

    def _num_needed(
        self, request: Request, starts: Sequence[Start], reach: Reach, *, admission: bool
    ) -> int:
        rows = list(zip(self.memory.groups, request.tables, starts, strict=True))
        for group, table, start in rows:
            table.checkpoint = self._checkpoint(group, request, table, start.num_tokens, reach)
        return sum(
            group.num_needed(self.memory.pool, table, start, reach, admission=admission)
            for group, table, start in rows
        )

    def _is_unwritten(self, group: Group, start: Start) -> bool:
        """Whether a hit is a state of this very step, or ends inside a block that is not written
        so far before it."""
        if isinstance(group, State):
            last = self.memory.pool.own_key(start.hits[-1]) if start.hits else None
            return last in group.this_step
        inside = not isinstance(group, State) and group.is_inside_a_block(start.hits, start)
        had = self.memory.written.get(start.hits[-1]) if inside and start.hits[-1] else None
        return had is not None and had < start.num_local_tokens

    def _checkpoint(
        self, group: Group, request: Request, table: Table, start: int, reach: Reach
    ) -> tuple[int, int] | None:
        """The tokens and the place of the state that a step saves on its way, where the backend
        can, in a place that nothing else has. Where only prompt ends are kept, the last step of a
        prompt does."""
        every = group.options.checkpoint_alignment
        end, unit = reach.num_main_tokens, self.hash_block
        prefill_end = max(request.num_prompt_tokens, len(request.tokens) - 1)
        if self.config.retention == Interval(0) and end < prefill_end:
            return None
        if every is None or start % unit:
            return None
        saved, place = self._last_boundary(end, self.hit_alignment), group.blocks_for(end) - 2
        can_save = start + unit <= saved < end and (saved - start) % every == 0
        if not can_save or place < group.blocks_for(start):
            return None
        drafts = group.options.num_speculative_blocks if table.has_run else 0
        held = table.blocks[: len(table.blocks) - drafts]
        return None if place < len(held) and held[place] else (saved, place)

    def _last_boundary(self, num_tokens: int, unit: int) -> int:
        """Where a prompt is resumed again: a token is left, or what a draft head drops."""
        limit = num_tokens - (not self.uses_eagle)
        return max(0, limit // unit * unit - unit * self.uses_eagle)

    def _adopt(self, request: Request, starts: Sequence[Start], need: Need) -> None:
        """First every group pins its hit, then any takes blocks for external tokens."""
        is_running = any(table.committed is not None for table in request.tables)
        if is_running:
            return
        self._started(request)
        if not need.num_hit_tokens + need.num_external_tokens:
            return
        rows = list(zip(self.memory.groups, request.tables, starts, strict=True))
        for group, table, start in rows:
            group.adopt(self.memory.pool, table, start)
        self._resumed(request, need)
        if need.num_external_tokens:
            for group, table, start in rows:
                is_loading = group.index in need.loading_groups
                group.adopt_external(self.memory.pool, table, start, is_loading=is_loading)

    def _started(self, request: Request) -> None:
        """A request begins to run. Only a retention by value needs to know."""

    def _resumed(self, request: Request, need: Need) -> None:
        """A request goes on after its hit. Only a retention by value needs to know."""

    def _retire(self, need: Need) -> None:
        computed = self._local(need) + need.num_external_tokens
        computed = at_most(computed, self.config.max_model_len)
        self.free_skipped(need.request, max(0, computed - need.num_in_flight_tokens))

    def _local(self, need: Need) -> int:
        """Tokens that a request has in this cache, its hit included."""
        computed = need.num_computed_tokens
        if computed is None:
            computed = self.memory.requests[need.request].num_computed_tokens
        return computed + need.num_hit_tokens

    def free_skipped(self, request: int, num_processed_tokens: int) -> None:
        tables = self.memory.requests[request].tables
        for group, table in zip(self.memory.groups, tables, strict=True):
            group.retire(self.memory.pool, table, num_processed_tokens)

    def start_step(self) -> None:
        for group in self.memory.groups:
            group.this_step.clear()
        self.memory.has_steps = not self.is_vllm
        self.memory.unwritten.clear()
        self.memory.num_given = 0
        self.memory.written.clear()
        ends, self.memory.being_copied = self.memory.being_copied, []
        self.memory.pool.release(ends)

    def record_blocks_for_zeroing(self, request: int, start_token: int) -> None:
        groups, tables = self.memory.groups, self.memory.requests[request].tables
        rows = [row for row in zip(groups, tables, strict=True) if row[0].options.needs_zeroing]
        unwritten = [group.unwritten(table, start_token) for group, table in rows]
        pool = self.memory.pool
        for block in (block for blocks in unwritten for block in blocks):
            if pool.references[block] > 1 or block in pool.keys:
                raise WouldWipeError
        for (group, _), blocks in zip(rows, unwritten, strict=True):
            group.zeroes += blocks

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
        return self.memory.pool.register(block, key, end)

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

    # ---- the pool ------------------------------------------------------------------------

    def reset(self) -> bool:
        pool = self.memory.pool
        if pool.references != Counter(self.memory.being_copied):
            return False
        for named in (pool.keys, pool.own_end, pool.copies, self.memory.unwritten):
            named.clear()
        self.memory.num_given = 0
        self._say(AllBlocksCleared())
        return True

    def _say(self, event: Event) -> None:
        self.memory.pool.events.append(event)

    def take_events(self) -> tuple[Event, ...]:
        events, self.memory.pool.events = self.memory.pool.events, []
        return tuple(events) if self.config.events else ()

    def take_statistics(self) -> Statistics:
        counts, self.memory.counts = self.memory.counts, Counter()
        pool = self.memory.pool
        evicted, pool.num_evicted = pool.num_evicted, 0
        taken, pool.num_taken = pool.num_taken, 0
        started, resumed = (
            Starts(*(counts.pop(f"{which} {what}", 0) for what in ("requests", "tokens", "hit")))
            for which in ("started", "resumed")
        )
        names = ["num_matches", "num_external_tokens", "num_junctions", "num_preemptions"]
        names += ["num_recoveries", "num_rewound_tokens", "num_held_blocks", "num_dropped_blocks"]
        rest: dict[str, Any] = {name: counts[name] for name in names}
        return Statistics(
            started=started,
            resumed=resumed,
            num_allocated_blocks=taken,
            num_evicted_blocks=evicted,
            **rest,
        )

    def take_work(self, *, caller_frees: bool = False) -> Work:
        """Take what is to be done; a model keeps no states for connectors."""
        if len(self.memory.unwritten) > 4 * self.memory.pool.num_blocks:
            self.memory.unwritten.clear()  # No step is that large.
        self.memory.num_given = len(self.memory.unwritten)
        groups = self.memory.groups
        copies = [pair for group in groups for pair in group.copies]
        blocks_to_zero = [block for group in groups for block in group.zeroes]
        for group in groups:
            group.copies.clear()
            group.zeroes.clear()
        ends = [block for pair in copies for block in pair]
        if caller_frees:
            self.memory.held.update(ends)
        else:
            self.memory.being_copied += ends
        pairs = [(BlockId(source), BlockId(copy)) for source, copy in copies]
        return Work(pairs, [BlockId(block) for block in blocks_to_zero], [])

    # ---- what is there -------------------------------------------------------------------

    def blocks(self, request: int) -> list[list[int]]:
        return [list(table.blocks) for table in self.memory.requests[request].tables]

    def num_common_prefix_blocks(self, requests: Sequence[int]) -> list[int]:
        tables = [self.blocks(request) for request in requests]
        return [self._num_common([table[g] for table in tables]) for g in range(self.num_groups)]

    def _num_common(self, tables: Sequence[Sequence[int]]) -> int:
        rows = [{*blocks} for blocks in zip(*tables, strict=False)]
        return len([*takewhile(lambda row: len(row) == 1 and NULL not in row, rows)])

    @property
    def num_groups(self) -> int:
        return len(self.memory.groups)


KINDS: Final[dict[SpecKind, type[Group]]] = {
    SpecKind.MAMBA: State,
    SpecKind.CROSS_ATTENTION: Cross,
}


def look_alike(one: GroupSpec, other: GroupSpec) -> bool:
    """Whether the engine asks two groups together; a draft head's is no kind of its own."""
    return replace(one, eagle=False) == replace(other, eagle=False)


def without_match(need: Need) -> Need:
    """The same need, in numbers."""
    if need.match is None:
        return need
    hit, junction = need.match
    return replace(need, match=None, num_hit_tokens=hit, junction=junction)


def at_most(tokens: int, limit: int | None) -> int:
    return tokens if limit is None else min(tokens, limit)


def demand(is_met: bool, reason: NoFit, *, has_retired: bool = True) -> None:
    if not is_met:
        raise OutOfBlocksError(reason, has_retired=has_retired)
