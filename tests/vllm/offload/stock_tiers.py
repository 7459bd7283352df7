"""vLLM's own tiered offloading without an engine: its manager, its memory, and our disk below it.

The scheduler's and the worker's part are played by `StockTiers`: it prepares and completes stores
and loads as the `OffloadingConnector` does, and fills and reads the rows of host memory.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

ROW_BYTES: Final = 8_192
RECORD_BYTES: Final = 4_096 + ROW_BYTES
NUM_ROWS: Final = 8
NUM_GROUPS: Final = 2
_ENGINES: Final = itertools.count()
_MOMENT_S: Final = 0.001


def config(
    entry: dict[str, Any], *, num_rows: int = NUM_ROWS, tells: bool = False
) -> OffloadingConfig:
    """Return what vLLM tells an offloading spec, for an entry of `secondary_tiers`."""
    return OffloadingConfig(
        groups=tuple(
            OffloadingGroupConfig(tokens_per_block=16, layer_names=(f"layer.{n}",), group_id=n)
            for n in range(NUM_GROUPS)
        ),
        worker_kv_bytes_per_block=ROW_BYTES,
        enable_kv_cache_events=tells,
        extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": num_rows * ROW_BYTES,
            "secondary_tiers": [entry],
        },
        engine_id=f"kvbraid-test-{time.monotonic_ns()}-{next(_ENGINES)}",
        model=OffloadingModelConfig(name="model", dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
        kv_cache_layout="LBHNC",
    )


def entry(directory: Path, **options: object) -> dict[str, Any]:
    """Return an entry of `secondary_tiers`, as docs/offload-stock.md has it."""
    return {
        "type": "KvbraidDiskTier",
        "module_path": "kvbraid.integrations.vllm",
        "disk_directory": str(directory),
        "disk_bytes": 1 << 20,
        "disk_threads": 2,
        **options,
    }


def key(number: int) -> OffloadKey:
    """Return the key of one of many blocks; they take turns in the groups."""
    return make_offload_key(sha256(str(number).encode()).digest(), number % NUM_GROUPS)


def content(number: int) -> bytes:
    """Return the bytes of a block, which tell its number."""
    return sha256(f"content {number}".encode()).digest() * (ROW_BYTES // 32)


class StockTiers:
    """vLLM's manager over `NUM_ROWS` rows of host memory and a directory."""

    def __init__(self, directory: Path, *, tells: bool = False, **options: object) -> None:
        made = config(entry(directory, **options), tells=tells)
        self._start(made)

    @classmethod
    def of(cls, made: OffloadingConfig) -> "StockTiers":
        """Return an engine of another configuration."""
        tiers = cls.__new__(cls)
        tiers._start(made)
        return tiers

    def _start(self, made: OffloadingConfig) -> None:
        self.manager: Any = TieringOffloadingSpec(made).get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.tier.report_seconds = 0.0
        self._memory: memoryview = self.manager.primary_tier.get_kv_memoryview().cast("B")
        self._numbers = itertools.count()
        self.counts: Counter[tuple[str, ...]] = Counter()

    def _request(self) -> ReqContext:
        request = ReqContext(req_id=str(next(self._numbers)))
        self.manager.on_new_request(request)
        return request

    def _row(self, chunk: int) -> memoryview:
        return self._memory[chunk * ROW_BYTES : (chunk + 1) * ROW_BYTES]

    def step(self) -> list[OffloadingEvent]:
        """End a step of the scheduler; return its events, and collect its statistics."""
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        self.tier.check_integrity()
        stats = self.tier.get_stats()
        for name, samples in stats.data["data"].items() if stats else ():
            for labels, value in samples.items():
                is_counter = stats.data["types"][name] == "counter"
                before = self.counts[name, *labels] if is_counter else 0
                self.counts[name, *labels] = before + value
        return list(self.manager.take_events())

    def settle(self) -> list[OffloadingEvent]:
        """Step until nothing moves."""
        events = self.step()
        while self.manager.has_pending_work():
            time.sleep(_MOMENT_S)
            events += self.step()
        return events

    def begin_store(self, numbers: Iterable[int]) -> None:
        """Fill rows as a worker does, and begin to write them."""
        request = self._request()
        offered = self.manager.prepare_store([key(number) for number in numbers], request)
        assert offered is not None, "every row is pinned"
        by_key = {key(number): content(number) for number in numbers}
        rows = zip(offered.keys_to_store, offered.store_spec.chunk_ids, strict=True)
        for each, chunk in rows:
            self._row(int(chunk))[:] = by_key[each]
        if offered.keys_to_store:
            self.manager.complete_store(offered.keys_to_store, request)
        self.manager.on_request_finished(request)

    def store(self, *numbers: int) -> list[OffloadingEvent]:
        """Store blocks in both tiers."""
        self.begin_store(numbers)
        return self.settle()

    def forget(self) -> None:
        """Empty host memory; what is on disk stays."""
        self.manager.reset_cache()

    def look_up(self, *numbers: int) -> list[LookupResult]:
        """Ask for blocks once, in one step."""
        request = self._request()
        found = [self.manager.lookup(key(number), request) for number in numbers]
        self.manager.on_request_finished(request)
        self.step()
        return found

    def load(self, *numbers: int) -> dict[int, bytes]:
        """Ask for blocks until none is pending; return the bytes of those that are there."""
        request = self._request()
        while True:
            found = {number: self.manager.lookup(key(number), request) for number in numbers}
            if set(found.values()) <= {LookupResult.HIT, LookupResult.MISS}:
                break
            time.sleep(_MOMENT_S)
            self.step()
        hits = [number for number, result in found.items() if result is LookupResult.HIT]
        self.sources = {self.manager.get_load_source(key(number), request) for number in hits}
        keys = [key(number) for number in hits]
        spec = self.manager.prepare_load(keys, request)
        read = {
            number: bytes(self._row(int(chunk)))
            for number, chunk in zip(hits, spec.chunk_ids, strict=True)
        }
        self.manager.complete_load(keys, request)
        self.manager.on_request_finished(request)
        return read

    def close(self) -> None:
        """Shut down as an engine does."""
        self._memory.release()
        self.manager.shutdown()


def changed(made: OffloadingConfig, **changes: Any) -> OffloadingConfig:  # noqa: ANN401
    """Return another configuration of an engine of its own."""
    return replace(made, engine_id=f"{made.engine_id}-changed", **changes)


def told(events: Iterable[OffloadingEvent], *, removed: bool = False) -> set[OffloadKey]:
    """Return the keys of events of the disk."""
    own = [event for event in events if event.medium.value == "STORAGE"]
    return {each for event in own if event.removed is removed for each in event.keys}


def files(directory: Path) -> dict[OffloadKey, Path]:
    """Return the record of each key that has one, whatever its namespace."""
    found = {}
    for path in directory.glob("*/*/*-*-*"):
        block_hash, group, _ = path.name.split("-")
        found[make_offload_key(bytes.fromhex(block_hash), int(group))] = path
    return found


FROM_DISK: Final = {CacheHitSource.DISK}
