"""An engine whose prompt was computed once, and is in host memory and on disk since.

The blocks are those of gpt-oss-20b on one device: 24 layers in two groups, 384 KiB a block. The
pool is memory of this process. A step of the engine lasts 10 ms, in which it sleeps.
"""

import functools
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.layout import Layout, LayoutGroup, LayoutLayer, MemoryPlan, geometry_of, plan_memory
from kvbraid.loads import Record
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.recovery.ledger.loading import targets_of
from kvbraid.spec import Topology
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Job
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.offload import Found, OffloadManager
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.worker import Worker
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from bench.cache.side import BLOCK, GPT_OSS, random_tokens
from bench.transfer.records import NAMESPACE

NUM_TOKENS: Final = 32_768
IN_HOST: Final = NUM_TOKENS * 2 // 3 // BLOCK * BLOCK
STORED: Final = NUM_TOKENS * 5 // 6 // BLOCK * BLOCK
CHUNK: Final = 2_048
"""The tokens of a step. Its blocks fit into the queue of writes to the disk."""
NUM_BLOCKS: Final = 3_000
NUM_SLOTS: Final = 3_600
STEP_SECONDS: Final = 0.01


def plan_of_blocks() -> MemoryPlan:
    """Return the plan of the pool."""
    heads = Heads(num=8, key_dim=64, value_dim=64, dtype="bfloat16")
    geometry = geometry_of(Layout.BLHNC, heads, BLOCK)
    groups = []
    for number, spec in enumerate(GPT_OSS):
        page = Page(kind=spec.kind, block_size=BLOCK, shape=heads, window=spec.window)
        layers = tuple(
            LayoutLayer(name=f"{2 * layer + number}", page=page, geometry=geometry)
            for layer in range(12)
        )
        groups.append(LayoutGroup(kind=spec.kind, block_size=BLOCK, layers=layers))
    return plan_memory(groups, num_blocks=NUM_BLOCKS)


class Offloaded:
    """The engine. All tokens up to `IN_HOST` are in host memory, those up to `STORED` on disk."""

    def __init__(self) -> None:
        plan = plan_of_blocks()
        self.block_bytes: Final = plan.groups[0].used_bytes
        assert [group.num_runs for group in plan.groups] == [1, 1]
        memory = np.zeros(plan.size_bytes + 4096, np.uint8)
        self.base: Final = memory.ctypes.data + -memory.ctypes.data % 4096
        start = self.base - memory.ctypes.data
        pool = memory[start : start + NUM_BLOCKS * self.block_bytes].view(np.uint64)
        self.pool: Final = pool.reshape(NUM_BLOCKS, -1)
        self._random: Final = np.random.default_rng(5).integers(
            0, 1 << 63, self.pool.shape[1], np.uint64
        )
        self._place: Final = TemporaryDirectory(prefix="kvbraid-bench-")
        self.host: Final = HostTier(HostSlots.of(plan, NUM_SLOTS * self.block_bytes))
        assert self.host.wait()
        tier = DiskTier(self._place.name, max_bytes=1 << 40)
        used = self.host.slots.used_bytes
        self.store: Final = RecordStore("disk", tier, namespace=NAMESPACE, used_bytes=used)
        self._worker: Final = Worker(
            Mover(plan, bases=self.base, host=self.host), {"disk": self.store}
        )
        self.cache: Final = CacheManager(
            CacheConfig(
                topology=Topology(groups=GPT_OSS),
                num_blocks=NUM_BLOCKS,
                hash_seed="0",
                events=True,
                findable=True,
            )
        )
        self.manager: Final = OffloadManager(
            self.cache, host_slots=NUM_SLOTS, tiers=[("disk", 10_000)]
        )
        self.jobs: list[Job] = []
        self.worker_ns = 0
        self._num_steps = self._num_loads = 0
        self.tokens: Final = random_tokens(6, NUM_TOKENS)
        self._prefill()
        self.restore()

    @property
    def files(self) -> Path:
        """The directory of the records."""
        return Path(self._place.name, NAMESPACE.digest)

    def content(self, key: BlockKey) -> NDArray[np.uint64]:
        """Return the bytes that a block has."""
        return self._random ^ np.uint64(xxh3_64_intdigest(key.to_bytes()))

    def _prefill(self) -> None:
        """Compute what is stored, chunk by chunk, and lose it on the device."""
        request = self.cache.add(self.tokens)
        self.manager.lookup(request, self.tokens)
        hashes = self.cache.tiers.block_hashes(request)[: STORED // BLOCK]
        for begin in range(0, STORED, CHUNK):
            end = min(begin + CHUNK, STORED)
            self._allocate(Need(request=request, num_new_tokens=end - begin))
            for group, table in enumerate(self.cache.blocks(request)):
                for at in range(begin // BLOCK, end // BLOCK):
                    self.pool[table[at]] = self.content(BlockKey(hashes[at], group))
            self._schedule()
            while self.manager.num_pending:
                self.run_step()
        self._forget(request)
        num = len(GPT_OSS) * STORED // BLOCK
        assert self.manager.num_blocks() == {"host": num, "disk": num}

    # One request.

    def add(self) -> int:
        """Return a request for the whole prompt that the cache knows; its hashes are computed."""
        self.jobs = []
        return self.cache.add(self.tokens)

    def hit(self, request: int) -> Found:
        """Load what tiers have of a request, allocate the rest, and take the events."""
        while not isinstance(found := self.manager.lookup(request, self.tokens), Found):
            self.manager.end_schedule(None)
            self.run_step()
        self._load(found)
        while not (reports := self.manager.take_reports()):
            self.run_step()
        assert not reports[0].failures.places, reports
        self.cache.commit(request, found.num_tokens)
        self._allocate(Need(request=request, num_new_tokens=NUM_TOKENS - found.num_tokens))
        self._schedule()
        self.cache.take_events()
        self.manager.take_events()
        return found

    def _load(self, found: Found) -> None:
        need = Need(
            request=found.request,
            num_new_tokens=0,
            match=found.match,
            num_external_tokens=found.num_external_tokens,
            delay_commit=True,
            loading_groups=(0, 1),
        )
        self._allocate(need)
        tables = self.cache.blocks(found.request)
        targets = [*targets_of(GPT_OSS, tables, found.match.num_tokens, found.num_tokens)]
        self.manager.begin_load(self._num_loads, self._num_steps, targets, found.request)
        self._num_loads += 1
        self._schedule()

    def _allocate(self, need: Need) -> None:
        self.cache.start_step()
        assert self.cache.allocate([need]).num_fit

    def _schedule(self) -> None:
        self.manager.end_schedule(self._num_steps, self.cache.take_work().kept_states)
        self._num_steps += 1

    def run_step(self) -> None:
        """Let jobs begin and a step pass, and take the answers."""
        jobs = self.manager.take_jobs()
        self.jobs += jobs
        begin = time.thread_time_ns()
        self._worker.submit(jobs)
        time.sleep(STEP_SECONDS)
        results = self._worker.poll()
        self.worker_ns += time.thread_time_ns() - begin
        self.manager.step_ended(self._num_steps - 1)
        self.manager.finished(0, results)

    # Between requests.

    def end(self, request: int) -> None:
        """End a request; what it has computed is not stored."""
        self.cache.pool.forget(self.manager.held_blocks)
        self._forget(request)
        self.manager.step_ended(self._num_steps)
        assert not self.manager.take_jobs()
        self.restore()

    def _forget(self, request: int) -> None:
        self.cache.release([request])
        self.manager.forget_request(request)

    def restore(self) -> None:
        """Lose what the device has, and what host memory has but for a hit of `IN_HOST`."""
        pool = self.cache.pool
        pool.free(pool.take(pool.num_free))
        # Its look-up makes them those that were used last: no slot of theirs is taken next.
        request = self.cache.add(self.tokens[: IN_HOST + 1])
        found = self.manager.lookup(request, may_wait=False)
        assert isinstance(found, Found)
        assert (found.num_tokens, found.tier) == (IN_HOST, "host"), found
        self.manager.end_schedule(None)
        self._forget(request)
        stay = {source.key for source in found.sources}
        for key in self.manager.contents()["host"].keys() - stay:
            self.manager.drop(Record("host", key.to_bytes()))
        self.cache.take_events()
        self.manager.take_events()

    def check_loaded(self, request: int, found: Found) -> None:
        """Check every byte that was loaded."""
        tables = self.cache.blocks(request)
        for source in found.sources:
            block = tables[source.group][source.position]
            assert np.array_equal(self.pool[block], self.content(source.key)), source


offloaded: Final = functools.cache(Offloaded)
