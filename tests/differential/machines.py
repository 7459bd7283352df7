"""The cache manager and its brute-force model side by side, as state machines of Hypothesis."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import lcm

import pytest
from hypothesis import assume, reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kvbraid.cache import ByValue, CacheConfig, CacheManager, EvictionPolicy, Match, Need
from kvbraid.errors import InvalidValueError, NotHeldError
from kvbraid.events import decode
from kvbraid.events.model import BlockRemoved, BlockStored, Event
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Lora, MediaItem
from kvbraid.ids import BlockId
from kvbraid.models import PrefillCost
from kvbraid.spec import SpecKind

from tests.reference.cache_by_value import ByValueModel
from tests.reference.cache_configs import BOTH_DIALECTS, cache_configs
from tests.reference.cache_memory import Fitted, Request
from tests.reference.cache_model import CacheModel
from tests.reference.cache_pool import HasHeirsError, WouldWipeError
from tests.unit.cache.caches import chunked, config, full, mamba, window

RUNS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 14)), min_size=1, max_size=3)
"""Tokens as runs of equal ones, so that most prompts share a prefix."""
HINTS = st.sampled_from((None, None, True, False, 0.125, 0.6))
MOST_REQUESTS = 5
MOST_TOKENS = 64  # Of a request.
EXTRAS = st.sampled_from(
    (
        NO_EXTRA_KEYS,
        NO_EXTRA_KEYS,
        NO_EXTRA_KEYS,
        ExtraKeys(cache_salt="salt"),
        ExtraKeys(lora=Lora("adapter", "/adapter"), cache_salt="salt"),
        ExtraKeys(media=(MediaItem("image", 1, 3), MediaItem("sound", 6, 2))),
    )
)


@dataclass
class Twin:
    """One request in both caches."""

    native: int
    model: int
    num_encoder_tokens: int
    deferred: bool = False  # While its load runs, none of its blocks is committed.


@dataclass
class Ledger:
    """What the events say is held: copies per group and hash."""

    copies: Counter[tuple[int | None, int]] = field(default_factory=Counter)

    def note(self, event: Event) -> None:
        if isinstance(event, BlockStored):
            self.copies.update((event.group_idx, h) for h in event.block_hashes)
        elif isinstance(event, BlockRemoved):
            self.copies.subtract((event.group_idx, h) for h in event.block_hashes)
        else:
            self.copies.clear()
        assert all(count >= 0 for count in self.copies.values())
        self.copies = +self.copies


class CacheMachine(RuleBasedStateMachine):
    """Every rule calls both caches and leaves the comparing to the invariants."""

    configs = cache_configs()
    model_of = CacheModel
    hints: st.SearchStrategy[float | None] = HINTS

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.config = replace(data.draw(self.configs), findable=True)
        self.native, self.model = CacheManager(self.config), self.model_of(self.config)
        self.twins: list[Twin] = []
        self.ever: list[Twin] = []
        self.held: list[BlockId] = []  # The caller has references of these.
        self.frees_copies = data.draw(st.booleans())
        self.takes_work_late = data.draw(st.booleans())  # When the step is over.
        self.next_step()
        self.ledger = Ledger()
        self.num_takes = 0
        self.told: set[tuple[int, bytes, int]] = set()  # Group, hash, block: all that was listed.
        self.seen: list[tuple[list[int], ExtraKeys]] = []
        for _ in range(3):
            self.live(data)

    # ---- what requests are like ----------------------------------------------------------

    def request(self, twin: Twin) -> Request:
        return self.model.memory.requests[twin.model]

    def is_running(self, twin: Twin) -> bool:
        return any(table.blocks for table in self.request(twin).tables)

    def of(self, *, running: bool) -> list[Twin]:
        return [twin for twin in self.twins if self.is_running(twin) is running]

    def room(self, twin: Twin) -> int:
        """Tokens that may still be added."""
        return MOST_TOKENS - len(self.request(twin).tokens)

    def num_left(self, twin: Twin) -> int:
        return len(self.request(twin).tokens) - self.request(twin).num_computed_tokens

    def longest_draft(self, twin: Twin) -> int:
        computed = self.request(twin).num_computed_tokens
        return MOST_TOKENS - computed

    # ---- requests come and grow ----------------------------------------------------------

    def add_one(self, data: st.DataObject) -> Twin:
        """A request that is new, or begins as one that was seen before."""
        tokens = [token for token, count in data.draw(RUNS) for _ in range(count)]
        extra = data.draw(EXTRAS)
        if self.seen and data.draw(st.sampled_from((True, True, False))):
            before, extra = data.draw(st.sampled_from(self.seen))
            shared = data.draw(st.sampled_from((len(before), len(before) - 1, len(before) // 2)))
            tokens = before[:shared] + tokens[: data.draw(st.integers(1, 8))]
        tokens = tokens[:MOST_TOKENS]
        prompt = data.draw(st.sampled_from((None, None, len(tokens) // 2 or None)))
        lora_id, hint = 7 if extra.lora else None, data.draw(self.hints)
        handles = [
            side.add(
                tokens, num_prompt_tokens=prompt, extra=extra, lora_id=lora_id, will_return=hint
            )
            for side in (self.native, self.model)
        ]
        self.seen = [*self.seen[-7:], (tokens, extra)]
        self.twins.append(Twin(handles[0], handles[1], data.draw(st.sampled_from((0, 5)))))
        self.ever.append(self.twins[-1])
        return self.twins[-1]

    def live(self, data: st.DataObject) -> None:
        """A request comes, perhaps computes all its tokens chunk by chunk, and perhaps goes."""
        if len(self.twins) >= MOST_REQUESTS:
            return self.go([self.twins[0]])
        twin = self.add_one(data)
        starts = data.draw(st.sampled_from((True, True, True, False)))
        need = self.begin(twin, data) if starts else None
        while need is not None and self.allocate([need]):
            self.everything_is_equal()
            need = self.proceed(twin, data) if self.num_left(twin) > 0 else None
            if data.draw(st.booleans()):
                self.next_step()
        return self.go([twin] if data.draw(st.booleans()) else [])

    def branch_off(self, data: st.DataObject) -> None:
        """A request computes what it asks for, and in the same step another goes on from there,
        or from a few tokens before."""
        if len(self.twins) >= MOST_REQUESTS:
            return self.go([self.twins[0]])
        first = self.add_one(data)
        if not self.allocate([self.begin(first, data)]):
            return None
        reached = self.request(first).tokens[: self.request(first).num_computed_tokens]
        self.seen = [(reached, self.request(first).extra)]
        return self.live(data)

    def one_of(self, twins: list[Twin], data: st.DataObject) -> Twin:
        assume(twins)
        return data.draw(st.sampled_from(twins))

    def extend(self, data: st.DataObject) -> None:
        twin = self.one_of(self.twins, data)
        tokens = [data.draw(st.integers(0, 1))] * data.draw(st.integers(1, 6))
        tokens = tokens[: self.room(twin)]
        self.native.extend(twin.native, tokens)
        self.model.extend(twin.model, tokens)

    def truncate(self, data: st.DataObject) -> None:
        twin = self.one_of(self.twins, data)
        known = self.request(twin)
        sizes = [group.block_size for group in self.config.topology.groups]
        committed = [(t.committed or 0) * s for t, s in zip(known.tables, sizes, strict=True)]
        ends = self.model.memory.pool.own_end  # A rewind may leave later blocks findable.
        findable = [ends.get(block, 0) for table in known.tables for block in table.blocks]
        least = max(known.num_prompt_tokens, *committed, *findable)
        if least <= len(known.tokens):
            num_tokens = data.draw(st.integers(least, len(known.tokens)))
            self.native.truncate(twin.native, num_tokens)
            self.model.truncate(twin.model, num_tokens)

    def commit(self, data: st.DataObject) -> None:
        twin = self.one_of(self.twins, data)
        known = self.request(twin)
        most = min(known.num_computed_tokens, len(known.tokens))
        num_tokens = data.draw(st.integers(0, most))
        self.native.commit(twin.native, num_tokens)
        self.model.commit(twin.model, num_tokens)
        twin.deferred &= num_tokens < most

    def zero_again(self, data: st.DataObject) -> None:
        """A load failed: what comes after the good tokens is zeroed, if nobody else reads it."""
        twin = self.one_of([twin for twin in self.twins if twin.deferred] or self.twins, data)
        unit = self.model.alignment
        most = self.request(twin).num_computed_tokens // unit
        start = data.draw(st.integers(0, most)) * unit + data.draw(st.sampled_from((0, 0, 0, 1)))
        try:
            self.model.record_blocks_for_zeroing(twin.model, start)
        except WouldWipeError:
            with pytest.raises(InvalidValueError, match="would wipe"):
                self.native.record_blocks_for_zeroing(twin.native, start)
        else:
            self.native.record_blocks_for_zeroing(twin.native, start)

    def free_skipped(self, data: st.DataObject) -> None:
        twin = self.one_of(self.twins, data)
        num_tokens = data.draw(st.integers(0, self.request(twin).num_computed_tokens))
        self.native.free_skipped(twin.native, num_tokens)
        self.model.free_skipped(twin.model, num_tokens)

    # ---- steps ---------------------------------------------------------------------------

    def next_step(self, _data: st.DataObject | None = None) -> None:
        self.take_work()
        self.native.start_step()
        self.model.start_step()

    def matched(self, twin: Twin) -> Match:
        match = self.native.match(twin.native)
        assert match == self.model.match(twin.model)
        return match

    def chunk_end(self, twin: Twin, start: int, most: int, data: st.DataObject) -> int:
        """Anywhere after the start, often where a state is worth keeping."""
        known, unit = self.request(twin), self.model.hash_block
        eagle = unit if self.model.uses_eagle else 0
        last = (known.num_prompt_tokens - (not eagle)) // unit * unit - eagle
        aligned = start // self.model.alignment * self.model.alignment + self.model.alignment
        ends = [most, last, last, known.junction, aligned, data.draw(st.integers(start, most))]
        return data.draw(st.sampled_from([end for end in ends if start < end <= most] or [most]))

    def begin(self, twin: Twin, data: st.DataObject) -> Need:
        """What a request that starts asks for: its hit, perhaps a load, and a first chunk."""
        known, match = self.request(twin), self.matched(twin)
        left = len(known.tokens) - match.num_tokens
        external = data.draw(st.sampled_from((0, 0, 0, data.draw(st.integers(0, left - 1)))))
        least = 0 if external else 1
        start = match.num_tokens + external
        # A load may begin where the hit's last whole blocks end, and cover the rest of the hit;
        # a hit from which tokens are replayed ends before such a place already.
        replays = self.model.config.topology.replay_tokens > 0
        rest = match.num_tokens % self.model.alignment if external and not replays else 0
        match, external = match._replace(num_tokens=match.num_tokens - rest), external + rest
        new = max(least, self.chunk_end(twin, start, len(known.tokens), data) - start)
        twin.deferred = bool(external) and data.draw(st.booleans())
        is_whole = data.draw(st.booleans())
        return Need(
            request=twin.native,
            num_new_tokens=new,
            match=match if is_whole else None,
            num_hit_tokens=0 if is_whole else match.num_tokens,
            junction=None if is_whole else match.junction,
            num_external_tokens=external,
            num_encoder_tokens=twin.num_encoder_tokens,
            num_lookahead_tokens=data.draw(st.sampled_from((0, 0, 2))),
            delay_commit=twin.deferred,
            loading_groups=self.loading(data) if external else (),
            full_sequence_must_fit=data.draw(st.booleans()),
            is_waiting=data.draw(st.booleans()),
        )

    def loading(self, data: st.DataObject) -> tuple[int, ...]:
        groups = st.integers(0, self.native.num_groups - 1)
        return tuple(data.draw(st.one_of(st.just(set()), st.sets(groups))))

    def proceed(self, twin: Twin, data: st.DataObject) -> Need | None:
        """The next chunk of a running request, drafts perhaps beyond its last token."""
        left = self.num_left(twin)
        drafts = data.draw(st.sampled_from((0, 0, 0, 2)))
        most = min(max(left, 0) + drafts, self.longest_draft(twin))
        most = min(most, self.model.most_new_tokens(twin.model))
        start = self.request(twin).num_computed_tokens
        if most < 1:
            return None
        return Need(
            request=twin.native,
            num_new_tokens=self.chunk_end(twin, start, start + most, data) - start,
            num_encoder_tokens=twin.num_encoder_tokens,
            num_lookahead_tokens=data.draw(st.sampled_from((0, 0, 1))),
            num_in_flight_tokens=data.draw(st.sampled_from((0, 0, 3))),
            delay_commit=twin.deferred,
        )

    def allocate(self, needs: list[Need], reserved: int = 0) -> int:
        by_native = {twin.native: twin.model for twin in self.twins}
        got = self.native.allocate(needs, reserved_blocks=reserved)
        for need in needs:
            need.request = by_native[need.request]
        expected = self.model.allocate(needs, reserved_blocks=reserved)
        return self.compare_allocations(got, expected)

    def compare_allocations(self, got: object, expected: Fitted) -> int:
        assert got.num_fit == expected.num_fit  # type: ignore[attr-defined]
        assert got.reason == expected.reason  # type: ignore[attr-defined]
        new = [got.new_blocks(i) for i in range(expected.num_fit)]  # type: ignore[attr-defined]
        assert new == expected.new
        rows = [blocks for request in expected.new for blocks in request]
        assert list(got.counts) == [len(blocks) for blocks in rows]  # type: ignore[attr-defined]
        flat = [block for blocks in rows for block in blocks]
        assert list(got.block_ids) == flat  # type: ignore[attr-defined]
        return expected.num_fit

    def step(self, data: st.DataObject) -> None:
        """Several requests in one call; one may start, first, as its hit must not be evicted."""
        idle, needs = self.of(running=False), []
        if idle and (len(idle) == len(self.twins) or data.draw(st.booleans())):
            needs.append(self.begin(data.draw(st.sampled_from(idle)), data))
        for twin in self.of(running=True):
            need = self.proceed(twin, data) if data.draw(st.booleans()) else None
            needs += [need] if need else []
        self.allocate(needs, data.draw(st.sampled_from((0, 0, 2))))

    def decode(self, data: st.DataObject) -> None:
        twins, tokens = self.decoding(), data.draw(st.sampled_from(([0] * 5, [1, 0, 1, 0, 1])))
        got = self.native.decode([twin.native for twin in twins], tokens[: len(twins)])
        expected = self.model.decode([twin.model for twin in twins], tokens[: len(twins)])
        self.compare_allocations(got, expected)

    def decoding(self) -> list[Twin]:
        """Requests whose tokens are all computed; cross attention has its blocks already."""
        return [
            twin
            for twin in self.of(running=True)
            if self.num_left(twin) == 0 and not twin.deferred and self.room(twin) > 0
        ]

    def reject_drafts(self, data: st.DataObject) -> None:
        """What was computed beyond the request's own tokens is rolled back, or partly taken; now
        and then more is taken back."""
        twin = self.one_of([twin for twin in self.twins if self.num_left(twin) < 0], data)
        known = self.request(twin)
        least = data.draw(st.sampled_from((len(known.tokens), len(known.tokens), 0)))
        computed = data.draw(st.integers(least, known.num_computed_tokens))
        if not self.model.can_roll_back(twin.model, computed):
            with pytest.raises(NotHeldError, match="after going back to"):
                self.native.roll_back(twin.native, computed)
            return
        self.native.roll_back(twin.native, computed)
        self.model.roll_back(twin.model, computed)
        accepted = [1] * min(max(0, computed - len(known.tokens)), self.room(twin))
        self.native.extend(twin.native, accepted)
        self.model.extend(twin.model, accepted)

    # ---- requests go ---------------------------------------------------------------------

    def go(self, twins: list[Twin]) -> None:
        if self.leave("release", twins):
            self.twins = [twin for twin in self.twins if twin not in twins]

    def leave(self, how: str, twins: list[Twin], *, step_failed: bool = False) -> bool:
        """Requests give their blocks back, unless others have adopted what is not written."""
        try:
            getattr(self.model, how)([twin.model for twin in twins], step_failed=step_failed)
        except HasHeirsError:
            with pytest.raises(InvalidValueError, match="has adopted"):
                getattr(self.native, how)([twin.native for twin in twins], step_failed=step_failed)
            return False
        getattr(self.native, how)([twin.native for twin in twins], step_failed=step_failed)
        return True

    def some(self, data: st.DataObject) -> list[Twin]:
        assume(self.twins)
        return data.draw(st.lists(st.sampled_from(self.twins), unique_by=id, max_size=2))

    def release(self, data: st.DataObject) -> None:
        self.go(self.some(data))

    def preempt(self, data: st.DataObject) -> None:
        step_failed = data.draw(st.booleans())
        self.leave("preempt", self.some(data), step_failed=step_failed)

    def pop_blocks(self, data: st.DataObject) -> None:
        twin = self.one_of(self.twins, data)
        try:
            expected = self.model.pop_blocks(twin.model)
        except HasHeirsError:
            with pytest.raises(InvalidValueError, match="has adopted"):
                self.native.pop_blocks(twin.native)
            return
        blocks = self.native.pop_blocks(twin.native)
        assert blocks == expected
        self.held += [block for block in blocks if block]
        self.twins.remove(twin)

    def free_blocks(self, _data: st.DataObject | None = None) -> None:
        self.native.pool.free(self.held[::-1])
        self.model.pool.free(self.held[::-1])
        self.held = []

    def take_blocks(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, min(2, self.native.pool.num_free)))
        taken = self.native.pool.take(count)
        assert taken == self.model.pool.take(count)
        self.held += taken

    def hold_blocks(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(self.any_block(), min_size=1, max_size=2))
        self.native.pool.hold(blocks)
        self.model.pool.hold(blocks)
        self.held += blocks

    def any_block(self) -> st.SearchStrategy[BlockId]:
        return st.integers(1, self.config.num_blocks - 1).map(BlockId)

    def some_blocks(self, data: st.DataObject) -> list[BlockId]:
        """Mostly blocks that tables have."""
        tables = [table for twin in self.twins for table in self.native.blocks(twin.native)]
        held = sorted({block for table in tables for block in table if block})
        any_block = self.any_block()
        one = st.sampled_from(held) if held else any_block
        return data.draw(st.lists(st.one_of(one, one, any_block), max_size=4))

    def forgettable(self) -> st.SearchStrategy[BlockId]:
        return self.any_block()

    def forget(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(self.forgettable(), min_size=1, max_size=3, unique=True))
        self.native.pool.forget(blocks)
        self.model.pool.forget(blocks)

    def take_findable(self) -> None:
        """Everything that is findable was told once, but for states, which move."""
        found = self.native.tiers.take_findable()
        numbers = {twin.native: twin.model for twin in self.ever}
        assert [
            f._replace(request=numbers[f.request]) for f in found
        ] == self.model.take_findable()
        self.told |= {(f.group, f.block_hash, f.block_id) for f in found}
        groups = self.config.topology.groups
        assert {
            (group, digest, block)
            for (group, digest), blocks in self.native.debug.cached().items()
            if groups[group].kind is not SpecKind.MAMBA
            for block in blocks
        } <= self.told

    def reset(self, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            self.go(list(self.twins))
            self.free_blocks()
        assert self.native.reset() == self.model.reset()

    # A rule that Hypothesis leaves out of a run is left out of all of it: hence two rules only.

    LIVES = (live, live, branch_off)

    @rule(data=st.data(), which=st.sampled_from((*LIVES, step, step, step, decode)))
    def work(self, data: st.DataObject, which: Callable[..., None]) -> None:
        """Blocks are taken: whole lives, steps of all that runs, one token each."""
        which(self, data)

    OFTEN = (next_step, free_blocks, extend, reject_drafts)
    SELDOM = (
        *(truncate, commit, free_skipped, release, preempt, forget, reset),
        *(pop_blocks, take_blocks, hold_blocks, zero_again),
    )

    @rule(data=st.data(), which=st.sampled_from((*OFTEN, *OFTEN, *SELDOM)))
    def interfere(self, data: st.DataObject, which: Callable[..., None]) -> None:
        """What happens between steps."""
        which(self, data)

    def teardown(self) -> None:
        """Nothing leaks: with all requests gone, every block is free and a reset works."""
        if not hasattr(self, "native"):
            return
        self.take_work()
        self.everything_is_equal()
        self.take_findable()
        self.native.release([twin.native for twin in self.twins])
        self.native.pool.free(self.held)
        assert self.native.reset()
        self.native.start_step()
        assert self.native.pool.num_free == self.config.num_blocks - 1
        assert self.native.pool.usage == 0.0
        assert self.native.reset()
        assert self.native.debug.cached() == {}
        assert sorted(self.native.debug.free_queue()) == list(range(1, self.config.num_blocks))
        self.native.debug.check_integrity()

    # ---- what must be equal --------------------------------------------------------------

    def take_work(self) -> None:
        work = self.native.take_work(caller_frees=self.frees_copies)
        expected = self.model.take_work(caller_frees=self.frees_copies)
        assert work[:2] == expected[:2]
        if self.frees_copies:
            self.held += [block for pair in work.copies for block in pair]

    @invariant()
    def everything_is_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        native, model = self.native, self.model
        if not self.takes_work_late:
            self.take_work()
        assert native.debug.free_queue() == model.debug.free_queue()
        assert native.debug.cached() == model.debug.cached()
        for (group, digest), holders in model.debug.cached().items():
            assert native.pool.holders(group, digest) == holders
        assert native.pool.num_free == model.pool.num_free
        assert native.pool.usage == model.pool.usage
        assert native.pool.num_held == model.pool.num_held == len(set(self.held))
        assert native.take_statistics() == model.take_statistics()
        running = self.of(running=True)
        for count in range(len(running) + 1):
            some = running[:count]
            got = native.num_common_prefix_blocks([twin.native for twin in some])
            assert got == model.num_common_prefix_blocks([twin.model for twin in some])
        assert native.num_groups == model.num_groups
        for twin in self.twins:
            assert native.blocks(twin.native) == model.blocks(twin.model)
            assert native.tiers.block_hashes(twin.native) == self.request(twin).hashes
            self.matched(twin)
        model.debug.check_integrity()
        native.debug.check_integrity(self.held)

    @invariant()
    def events_are_equal_and_tell_what_is_held(self) -> None:
        if not hasattr(self, "native"):
            return
        events = self.native.take_events()
        structs = events.structs()
        assert structs == self.model.take_events()
        assert len(events) == len(structs)
        assert decode(events.to_bytes(1.5, None)).events == structs
        for event in structs:
            self.ledger.note(event)
        self.num_takes += 1
        if self.num_takes % 3 == 0:  # Of several steps together.
            self.take_findable()
        held = {
            (g, int.from_bytes(h[-8:], "big")): len(blocks)
            for (g, h), blocks in self.native.debug.cached().items()
        }
        assert self.ledger.copies == held


MIXES = (
    [full(4)],
    [full(4), full(4)],
    [full(4), window(9, 4)],
    [full(4), mamba(4)],
    [full(4), window(5, 4), mamba(4)],
    [full(4), chunked(8, 4), window(6, 4)],
    [full(4, eagle=True), window(9, 4)],
    [full(4), window(6, 4, eagle=True)],
    [full(4), full(8)],
    [full(4), mamba(8)],
    [full(8), window(6, 4)],
    [full(4), full(6)],
    [mamba(4)],
    [window(9, 4), window(14, 4)],
    [window(6, 4), mamba(4)],
)
"""Groups with many boundaries in few tokens: most requests make checkpoints."""


@st.composite
def by_value_configs(draw: st.DrawFn, policies: st.SearchStrategy[EvictionPolicy]) -> CacheConfig:
    """Those, or any groups."""
    few = st.sampled_from(MIXES).map(lambda groups: config(*groups))
    drawn = draw(st.one_of(few, few, BOTH_DIALECTS, BOTH_DIALECTS))
    alignment = drawn.topology.alignment or lcm(*(g.block_size for g in drawn.topology.groups))
    cost = PrefillCost(draw(st.sampled_from((1.0, 0.5))), draw(st.sampled_from((0.0, 0.1))))
    interval = alignment * draw(st.sampled_from((0, 1, 2, 4)))
    return replace(
        drawn,
        num_blocks=draw(st.sampled_from((8, 14, 20, 30, 60))),
        retention=ByValue(interval=interval, cost=cost, policy=draw(policies)),
    )


class ByValueMachine(CacheMachine):
    """The checkpoints too."""

    configs = by_value_configs(st.sampled_from(EvictionPolicy))
    model_of = ByValueModel
    model: ByValueModel
    hints = st.none()

    def forgettable(self) -> st.SearchStrategy[BlockId]:
        """Mostly blocks that are cached: what checkpoints need is among them."""
        cached = sorted({block for row in self.native.debug.cached().values() for block in row})
        ids = super().forgettable()
        return st.one_of(st.sampled_from(cached), ids) if cached else ids

    def has_learned_a_length(self) -> bool:
        """Whether steps of a request that comes now would end there."""
        request = self.native.add([0])
        stops = self.native._core.stops(request)
        self.native.release([request])
        return bool(stops)

    @invariant()
    def checkpoints_are_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        if self.has_learned_a_length():
            reject()
        checkpoints, points = self.native.debug.checkpoints(), self.model.checkpoints
        queue = points.queue()
        assert [(c.block_hash, c.num_tokens, c.is_last) for c in checkpoints] == [
            (point.path[-1], point.end, not points.num_ways(point)) for point in queue
        ]
        values = [point.key.value - points.level for point in queue if point.key]
        assert [c.value for c in checkpoints] == pytest.approx(values, rel=1e-9, abs=1e-9)
