"""Two tiers on one directory against a dictionary: what is there, who knows it, what is evicted.

The dictionary is `MemoryTier`. A file's time of use is the number of the step that used it, so
that the order of eviction is exact. After each step: what a tier loads is what was stored; its
keys are what the answers of its calls and its `refresh` have said; the limit holds.
"""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import parse_record, record_name, shard_of
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status

from tests.reference.memory_tier import MemoryTier
from tests.unit.transfer.faulty_tier import NAMESPACE, key

NUM_KEYS = 30
WHO = st.integers(0, 1)
WHICH = st.integers(0, NUM_KEYS - 1)


def pages_of(number: int) -> int:
    """Return how long the payload of a key is: two groups, of one and of three pages."""
    return 1 + number % 2 * 2


def key_of(number: int) -> BlockKey:
    return key(number, number % 2)


class TwoTiers(RuleBasedStateMachine):
    """Two tiers of one namespace on one directory, in one process."""

    @initialize(max_pages=st.integers(20, 60))
    def begin(self, max_pages: int) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.max_bytes = max_pages * PAGE_BYTES
        self.model = MemoryTier()
        self.used: dict[BlockKey, int] = {}
        self.step = 0
        self.tiers = [self.opened(), self.opened()]
        self.known: list[set[BlockKey]] = [set(), set()]

    def opened(self) -> DiskTier:
        tier = DiskTier(self.path, max_bytes=self.max_bytes)
        tier.open(NAMESPACE)
        return tier

    def file(self, which: BlockKey) -> Path:
        name = record_name(which, (1 + which.group * 2) * PAGE_BYTES)
        return self.path / NAMESPACE.digest / shard_of(which) / name

    def use(self, which: BlockKey) -> None:
        self.step += 1
        self.used[which] = self.step
        os.utime(self.file(which), (self.step, self.step))

    def there(self) -> set[BlockKey]:
        found = (parse_record(path.name) for path in self.path.rglob("*-*-*"))
        return {record.key for record in found if record is not None}

    def note_evicted(self, before: list[int]) -> None:
        """Forget what has been evicted: it was used before all that is left."""
        evicted = self.model.records.keys() - self.there()
        after = [tier.counts().evicted for tier in self.tiers]
        assert sum(after) - sum(before) == len(evicted)
        last = max((self.used[each] for each in evicted), default=0)
        assert all(self.used[each] > last for each in self.model.records.keys() - evicted)
        for each in evicted:
            self.model.drop(each)

    def evicted(self) -> list[int]:
        return [tier.counts().evicted for tier in self.tiers]

    @rule(who=WHO, number=WHICH)
    def store(self, who: int, number: int) -> None:
        which, before = key_of(number), self.evicted()
        header, payload = pages(), pages(pages_of(number))
        header[:4], payload[:4] = (number.to_bytes(4, "big"),) * 2
        status = self.tiers[who].store(which, header, payload)
        self.note_evicted(before)
        if status is Status.OK:
            self.model.store(which, header, payload)
            self.known[who].add(which)
            self.use(which)
        else:
            assert status is Status.FULL
            assert not self.tiers[who].counts().evicts or self.total() > self.max_bytes // 2

    def total(self) -> int:
        return sum(len(record) for record in self.model.records.values())

    @rule(who=WHO, number=WHICH)
    def load(self, who: int, number: int) -> None:
        told: list[tuple[Status, bytes, bytes]] = []
        for tier in (self.tiers[who], self.model):
            header, payload = pages(), pages(pages_of(number))
            status = tier.load(key_of(number), header, payload)
            told.append((status, bytes(header), bytes(payload)))
        assert told[0] == told[1]
        if told[0][0] is Status.OK:
            self.use(key_of(number))
        else:
            self.known[who].discard(key_of(number))

    @rule(who=WHO, number=WHICH)
    def drop(self, who: int, number: int) -> None:
        self.tiers[who].drop(key_of(number))
        self.model.drop(key_of(number))
        self.known[who].discard(key_of(number))

    @rule(who=WHO)
    def refresh(self, who: int) -> None:
        before = self.evicted()
        changes = self.tiers[who].refresh()
        self.note_evicted(before)
        self.known[who] -= set(changes.removed)
        self.known[who] |= set(changes.added)
        assert self.known[who] == self.model.records.keys() == {*self.tiers[who].keys()}
        assert not self.tiers[who].counts().evicts or self.total() <= self.max_bytes

    @rule(number=WHICH)
    def lose(self, number: int) -> None:
        self.file(key_of(number)).unlink(missing_ok=True)
        self.model.drop(key_of(number))

    @rule(who=WHO)
    def reopen(self, who: int) -> None:
        self.tiers[who].close()
        self.tiers[who] = self.opened()
        self.known[who] = set(self.model.records)

    @invariant()
    def what_a_tier_has_is_consistent(self) -> None:
        for tier in self.tiers:
            tier.check_integrity()
        assert self.there() == self.model.records.keys()

    def teardown(self) -> None:
        for tier in getattr(self, "tiers", []):
            tier.close()
        shutil.rmtree(self.path, ignore_errors=True)


TestTwoTiers = TwoTiers.TestCase
TestTwoTiers.settings = settings(max_examples=15, stateful_step_count=40)
