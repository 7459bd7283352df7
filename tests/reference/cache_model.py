"""The whole hybrid KV cache by brute force, with the interface of `kvbraid.cache.CacheManager`.

Invariant: everything is done block by block in vLLM's order, and an operation that may fail is
tried on a copy. `cache_findable` has the other half of the invariant: what a hit is, and what is
registered. The model is slow, and never checks its arguments.
"""

import copy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from kvbraid.cache import Interval, Need, NoFit, Starts, Statistics, Work
from kvbraid.events.model import AllBlocksCleared, Event
from kvbraid.ids import BlockId

from tests.reference import resume
from tests.reference.cache_findable import FindableModel
from tests.reference.cache_groups import Cross, Group, Reach, Ring, Start, State, Table
from tests.reference.cache_memory import Fitted, Request
from tests.reference.cache_pool import NULL, HasHeirsError, OutOfBlocksError, WouldWipeError


class CacheModel(FindableModel):
    """See `kvbraid.cache.CacheManager`; `take_events` returns the structs themselves."""

    # ---- requests ------------------------------------------------------------------------

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
        """The most tokens that a step may compute, so every state can take its drafts back."""
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
        hits = self.hits_of(request, need.num_hit_tokens)
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

    def _adopt(self, request: Request, starts: Sequence[Start], need: Need) -> None:
        """First every group pins its hit, then any takes blocks for external tokens."""
        is_running = any(table.committed is not None for table in request.tables)
        if is_running or not need.num_hit_tokens + need.num_external_tokens:
            return
        rows = list(zip(self.memory.groups, request.tables, starts, strict=True))
        for group, table, start in rows:
            group.adopt(self.memory.pool, table, start)
        self._resumed(request, need)
        if need.num_external_tokens:
            for group, table, start in rows:
                is_loading = group.index in need.loading_groups
                group.adopt_external(self.memory.pool, table, start, is_loading=is_loading)

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
