"""A recovery in one step does what the single calls do on a copy, or changes nothing.

In the middle of random lives, recoveries are drawn part by part, so some of them contradict
themselves. The single calls run on a copy of the cache, and the parts that exclude each other are
looked for in the tables of the brute-force model. If neither objects, the recovery must succeed,
and the cache must equal the copy and the model. Otherwise it must be refused, and nothing may
change. The native side is `CacheCore.recover`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from kvbraid.cache import CacheConfig, CacheManager, GroupOptions, Recovery
from kvbraid.errors import KvbraidError
from kvbraid.ids import BlockId

from tests.differential.machines import ByValueMachine, CacheMachine, Twin
from tests.differential.tables_machine import TablesMachine
from tests.reference.cache_groups import Cross, Group, Ring, State, Table
from tests.unit.cache.caches import picture


def call_one_by_one(cache: CacheManager, recovery: Recovery) -> None:
    """The obvious recovery: the single calls, in the order of the fields."""
    cache.pool.forget(recovery.forget)
    for request, num_tokens in recovery.commit.items():
        cache.commit(request, num_tokens)
    for request, num_tokens in recovery.rewind.items():
        cache.tables.rewind(request, num_tokens)
    cache.pool.hold(recovery.hold)
    cache.preempt(recovery.preempt)
    for request, start in recovery.zero.items():
        cache.record_blocks_for_zeroing(request, start)


def succeeds(cache: CacheManager, recovery: Recovery) -> bool:
    try:
        call_one_by_one(cache, recovery)
    except KvbraidError:
        return False
    return True


MOSTLY = st.sampled_from((True, True, False))
SELDOM = st.sampled_from((False,) * 9 + (True,))


def zeroed(config: CacheConfig) -> CacheConfig:
    """The first group, which is mostly a full one, has its blocks zeroed."""
    first, *others = config.group_options or [GroupOptions()] * len(config.topology.groups)
    return replace(config, group_options=(replace(first, needs_zeroing=True), *others))


class RecoveryMachine(CacheMachine):
    """Recoveries among all other calls; most caches have no states, so that requests go back."""

    configs = TablesMachine.configs.map(zeroed)

    # ---- recoveries of any sense ---------------------------------------------------------

    def draw_recovery(self, data: st.DataObject) -> Recovery:
        """Two requests and their blocks, mostly as an engine would treat them."""
        assume(self.twins)
        hurt = data.draw(
            st.lists(st.sampled_from(self.twins), unique_by=id, min_size=1, max_size=2)
        )
        back = [twin for twin in hurt if data.draw(MOSTLY)]
        gone = [twin for twin in self.twins if twin not in back and data.draw(st.booleans())]
        gone = hurt if data.draw(SELDOM) else gone
        stays = [twin for twin in self.twins if twin not in gone]
        forget = self.failed(hurt, data) if data.draw(MOSTLY) else []
        rewind = {twin.native: self.boundary(twin, forget, data) for twin in back}
        zeroed = [twin for twin in back or stays if twin in stays or data.draw(SELDOM)]
        return Recovery(
            forget=forget,
            commit={
                twin.native: self.arrived(twin, rewind.get(twin.native), data)
                for twin in self.twins
                if data.draw(st.booleans() if twin.deferred or twin in hurt else SELDOM)
            },
            rewind=rewind,
            hold=[]
            if data.draw(MOSTLY)
            else self.failed(hurt if data.draw(SELDOM) else gone, data),
            preempt=[twin.native for twin in gone],
            zero={
                twin.native: self.unwritten_from(twin, rewind, data)
                for twin in zeroed
                if data.draw(st.booleans())
            },
        )

    def failed(self, twins: list[Twin], data: st.DataObject) -> list[BlockId]:
        """Some blocks, or the last ones of the tables of a request."""
        if not twins or data.draw(SELDOM):
            return self.some_blocks(data)
        tables = self.native.blocks(data.draw(st.sampled_from(twins)).native)
        first = data.draw(st.integers(0, max(map(len, tables), default=0)))
        return [block for table in tables for block in table[first:] if block]

    def boundary(self, twin: Twin, bad: list[BlockId], data: st.DataObject) -> int:
        if data.draw(st.booleans()):
            return self.native.tables.resume_points([twin.native], bad)[0].num_tokens
        known = self.request(twin)
        most = min(known.num_computed_tokens, len(known.tokens))
        return data.draw(st.integers(0, most))

    def arrived(self, twin: Twin, rewound: int | None, data: st.DataObject) -> int:
        known = self.request(twin)
        most = min(known.num_computed_tokens, len(known.tokens), *([rewound] if rewound else []))
        return data.draw(st.sampled_from((most, most, most // 2, most + 1)))

    def unwritten_from(self, twin: Twin, rewind: dict[int, int], data: st.DataObject) -> int:
        unit, computed = self.model.alignment, self.request(twin).num_computed_tokens
        start = rewind.get(twin.native, data.draw(st.sampled_from((computed, computed // 2))))
        return -(-start // unit) * unit + data.draw(st.sampled_from((0, 0, 0, 0, 1)))

    # ---- what the parts forbid each other ------------------------------------------------

    def contradicts_itself(self, recovery: Recovery, *, strictly: bool = False) -> bool:
        """Strictly: a commit may register every block that can be found at several boundaries."""
        committed = {*self.committed(recovery, strictly=strictly)}
        return (
            bool({*recovery.preempt} & {*recovery.rewind, *recovery.zero})
            or any(recovery.rewind.get(r, end) < end for r, end in recovery.commit.items())
            or bool({*recovery.forget} & committed)
            or bool({*recovery.hold} & {*self.written(recovery.rewind)})
            or bool(committed & {*self.written(recovery.zero, zeroed=True)})
            or not all(self.has_owner(block) for block in recovery.hold)
        )

    def rows(self, request: int) -> Iterator[tuple[Group, Table]]:
        (twin,) = [twin for twin in self.twins if twin.native == request]
        yield from zip(self.model.memory.groups, self.request(twin).tables, strict=True)

    def committed(self, recovery: Recovery, *, strictly: bool) -> list[int]:
        """Blocks with a committed token that were not committed before."""
        if not self.config.caching:
            return []
        return [
            block
            for request, end in recovery.commit.items()
            for group, table in self.rows(request)
            if self.model._is_shared(group)
            for position, block in enumerate(table.blocks)
            if ((table.committed or 0) <= position and position * group.spec.block_size < end)
            or (strictly and (isinstance(group, State) or self.is_cut(group)))
        ]

    def is_cut(self, group: Group) -> bool:
        return group.spec.block_size != self.model.hash_block

    def written(self, starts: Mapping[int, int], *, zeroed: bool = False) -> list[int]:
        """Blocks of the tokens after these, without null blocks."""
        return [
            block
            for request, start in starts.items()
            for group, table in self.rows(request)
            if group.options.needs_zeroing or not zeroed
            if not isinstance(group, Cross)
            for position, block in enumerate(table.blocks)
            if isinstance(group, Ring) or (position + 1) * group.spec.block_size > start
            if block
        ]

    def has_owner(self, block: BlockId) -> bool:
        references = self.native.pool.describe([block])[0].num_references
        return references > self.held.count(block)

    # ---- in one step ---------------------------------------------------------------------

    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        recovery = self.draw_recovery(data)
        before, expected = self.native.copy(), self.native.copy()
        refuses = self.contradicts_itself(recovery) or not succeeds(expected, recovery)
        try:
            self.native.recover(recovery)
        except KvbraidError:
            assert refuses or self.contradicts_itself(recovery, strictly=True)
            assert self.picture(self.native) == self.picture(before)
        else:
            assert not refuses
            self.check_law(recovery)
            assert self.picture(self.native) == self.picture(expected)
            self.tell_model(recovery)
        self.native.debug.check_integrity(self.held)

    def picture(self, cache: CacheManager) -> object:
        """All that shows, and what the next calls take, except the count of recoveries."""
        twin, requests = cache.copy(), [twin.native for twin in self.twins]
        return (
            picture(twin, requests),
            [(twin.num_computed_tokens(r), twin.debug.cursors(r)) for r in requests],
            (twin.debug.checkpoints(), twin.debug.fresh_states()),
            twin.take_work(caller_frees=self.frees_copies),
            replace(twin.take_statistics(), num_recoveries=0),
            twin.take_events().structs(),
        )

    def check_law(self, recovery: Recovery) -> None:
        """What is forgotten is not found, and what is zeroed has one owner, who alone knows it."""
        cache = self.native
        assert not any(info.block_hash for info in cache.pool.describe(recovery.forget))
        for request, end in recovery.rewind.items():
            assert cache.num_computed_tokens(request) == end
        zeroed = [BlockId(block) for block in self.written(recovery.zero, zeroed=True)]
        for info in cache.pool.describe(zeroed):
            assert info.block_hash is None
            assert info.num_references == 1
        for request in recovery.preempt:
            assert not any(cache.blocks(request))

    def tell_model(self, recovery: Recovery) -> None:
        models = {twin.native: twin.model for twin in self.twins}
        self.model.pool.forget(recovery.forget)
        for request, num_tokens in recovery.commit.items():
            self.model.commit(models[request], num_tokens)
        for request, num_tokens in recovery.rewind.items():
            self.model.rewind(models[request], num_tokens)
        self.model.pool.hold(recovery.hold)
        self.model.preempt([models[request] for request in recovery.preempt])
        for request, start in recovery.zero.items():
            self.model.record_blocks_for_zeroing(models[request], start)
        self.model.memory.counts["num_recoveries"] += 1
        self.held += recovery.hold


class ByValueRecoveryMachine(RecoveryMachine, ByValueMachine):
    """The checkpoints too."""

    configs = ByValueMachine.configs.map(zeroed)


TestRecover = RecoveryMachine.TestCase
TestRecover.settings = settings(max_examples=120, stateful_step_count=20)
TestRecoverByValue = ByValueRecoveryMachine.TestCase
TestRecoverByValue.settings = settings(max_examples=50, stateful_step_count=20)
